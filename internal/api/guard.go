package api

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/http/httpguts"

	"sandlot/internal/fault"
	"sandlot/internal/limit"
)

// Guard refuses what a browser was tricked into sending: a Host that is not
// this server (DNS rebinding), an Origin that is not allowed.
type Guard struct {
	Loopback bool     // the server listens on loopback alone
	CORS     bool     // send CORS headers
	Origins  []string // allowed ones; empty with CORS: any, without credentials
	// Closed says whether every request needs a token now. Where it does not, or
	// nothing says so, CORS allows no origin that is not listed: a page needs no
	// credentials then to do what the user can.
	Closed func(context.Context) bool
	// Apart says which hosts are those of servers in sandboxes: whatever CORS
	// allows, their pages are not.
	Apart func(host string) bool
}

func (g Guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.knows(w, r) {
			return
		}
		origin := r.Header.Get("Origin")
		if origin != "" && !g.allowed(r, origin) {
			refuse(w, "Origin "+strconv.Quote(fault.Clip(origin))+" is not allowed; the operator can list it in cors.origins")
			return
		}
		if origin == "" && r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Method != http.MethodGet && r.Method != http.MethodHead {
			refuse(w, "a page of another site sent this request")
			return
		}
		if g.CORS && origin != "" && g.cors(w, r, origin) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knows says whether the request is for this server, and refuses it otherwise.
func (g Guard) knows(w http.ResponseWriter, r *http.Request) bool {
	ok := !g.Loopback || local(r.Host)
	if !ok {
		refuse(w, "Host "+strconv.Quote(fault.Clip(r.Host))+" is not this server; use localhost or 127.0.0.1")
	}
	return ok
}

func refuse(w http.ResponseWriter, why string) {
	writeProblem(w, Problem{Title: "FORBIDDEN", Status: 403, Detail: why,
		Data: fault.Data{ErrorCode: "FORBIDDEN", Category: "authentication", Severity: "medium", RecoverySuggestions: []string{}, Context: map[string]any{}}})
}

func local(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// allowed says whether a page of that origin may send the request. The origin
// "null" is anybody's, such as of a page in a frame without rights: it never may.
func (g Guard) allowed(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if g.Apart != nil && g.Apart(u.Host) {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) || slices.Contains(g.Origins, origin) {
		return true
	}
	return g.CORS && len(g.Origins) == 0 && g.Closed != nil && g.Closed(r.Context())
}

const (
	corsMethods = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
	corsHeaders = "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
	// headerParam begins headers that repeat a tool's argument; tools name them.
	headerParam = "Mcp-Param-"
	// maxParams bounds how many of them are allowed by name.
	maxParams  = 64
	corsExpose = "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, X-Request-Id"
)

// cors sets the headers; it answers a preflight and says that it did.
func (g Guard) cors(w http.ResponseWriter, r *http.Request, origin string) bool {
	h := w.Header()
	if len(g.Origins) == 0 {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Add("Vary", "Origin")
	}
	h.Set("Access-Control-Expose-Headers", corsExpose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders+params(r))
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// params returns those of the headers that a preflight asks for that repeat an
// argument of a tool. They have to be allowed by name, as a * does not hold for
// requests with credentials.
func params(r *http.Request) string {
	var all []string
	for line := range slices.Values(r.Header.Values("Access-Control-Request-Headers")) {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if len(all) < maxParams && strings.HasPrefix(name, headerParam) && httpguts.ValidHeaderFieldName(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ", " + strings.Join(all, ", ")
}

// Metrics counts what happens, for Prometheus.
type Metrics struct {
	Registry *prometheus.Registry
	requests *prometheus.CounterVec
	calls    *prometheus.HistogramVec
}

// NewMetrics returns the counters. Gauges are read when they are asked for.
func NewMetrics(live func() int, pool func() map[string]int, templates []string) *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandlot_http_requests_total", Help: "HTTP requests by method and status."}, []string{"method", "status"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sandlot_tool_call_seconds", Help: "Tool calls by tool and outcome (ok, error, or a fault's code).",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)}, []string{"tool", "outcome"}),
	}
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.requests, m.calls,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandlot_sessions_live", Help: "Sessions that have a sandbox."}, func() float64 { return float64(live()) }))
	for _, t := range templates {
		m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandlot_pool_ready", Help: "Warm sandboxes that wait.",
			ConstLabels: prometheus.Labels{"template": t}}, func() float64 { return float64(pool()[t]) }))
	}
	return m
}

// Starts counts sandboxes by how they start, as started says.
func (m *Metrics) Starts(started func() (prebooted, booted int64)) {
	for i, from := range []string{"snapshot", "boot"} {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sandlot_sandboxes_started_total",
			Help: "Sandboxes that were started, from a snapshot or by booting.", ConstLabels: prometheus.Labels{"from": from}}, func() float64 {
			prebooted, booted := started()
			return float64([]int64{prebooted, booted}[i])
		}))
	}
}

// External is the one label of all tools of third-party servers: their names are
// their users' alone, and there may be any number of them.
const External = "ext"

// Call counts one tool call, of a tool of ours or of External.
func (m *Metrics) Call(tool, outcome string, took time.Duration) {
	m.calls.WithLabelValues(tool, outcome).Observe(took.Seconds())
}

type requestID struct{}

// RequestID returns the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestID{}).(string)
	return id
}

// count gives each request an id, counts it and logs it.
func (m *Metrics) count(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		var b [8]byte
		rand.Read(b[:])
		id := hex.EncodeToString(b[:])
		w.Header().Set("X-Request-Id", id)
		r = r.WithContext(context.WithValue(r.Context(), requestID{}, id))
		sw := &statusWriter{ResponseWriter: w, status: 200}
		sw.allow(time.Time{}) // of the request before
		defer func() {
			sw.allow(time.Now().Add(stall)) // for what is still on its way to the client
			m.requests.WithLabelValues(method(r.Method), status(sw.status)).Inc()
			log.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", sw.status, "took", time.Since(start))
		}()
		next.ServeHTTP(sw, r)
	})
}

// method keeps made-up methods out of the labels.
func method(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS":
		return m
	}
	return "other"
}

// status keeps out those that a server in a sandbox made up.
func status(code int) string {
	if http.StatusText(code) == "" {
		return "other"
	}
	return strconv.Itoa(code)
}

type statusWriter struct {
	http.ResponseWriter
	status int

	held *limit.Held // what the answer holds until it was written; nil: it does not count

	mu  sync.Mutex
	cut bool // its last deadline stays
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// piece is what a client has to take in a minute.
const piece = 64 << 10

// Write gives the client a minute for each piece.
func (s *statusWriter) Write(b []byte) (n int, err error) {
	for err == nil && (n == 0 || n < len(b)) {
		s.allow(time.Now().Add(stall))
		var k int
		k, err = s.ResponseWriter.Write(b[n:min(len(b), n+piece)])
		if n += k; k == 0 {
			break
		}
	}
	return n, err
}

// Flush implements http.Flusher.
func (s *statusWriter) Flush() {
	s.allow(time.Now().Add(stall))
	http.NewResponseController(s.ResponseWriter).Flush()
}

func (s *statusWriter) allow(until time.Time) {
	_ = http.NewResponseController(s).SetWriteDeadline(until) // tests have none
}

// SetWriteDeadline is for http.ResponseController. A later one than that of a
// request that was cut does not count.
func (s *statusWriter) SetWriteDeadline(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return nil
	}
	return http.NewResponseController(s.ResponseWriter).SetWriteDeadline(until)
}

// end cuts the request soon, whatever it waits for.
func (s *statusWriter) end(soon time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	control := http.NewResponseController(s.ResponseWriter)
	_ = control.SetReadDeadline(soon) // what was taken over is closed by who did
	_ = control.SetWriteDeadline(soon)
}

func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
