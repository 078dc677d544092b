package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	logspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/event"
)

// collector is an OpenTelemetry collector that decodes what it gets.
type collector struct {
	t *testing.T
	*httptest.Server
	mu      sync.Mutex
	spans   []*spanpb.Span
	logs    []string // event name, body and attributes
	metrics map[string]bool
	service string
	headers http.Header
	bodies  bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t, metrics: map[string]bool{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, zerr := gzip.NewReader(bytes.NewReader(body))
		if zerr != nil {
			c.t.Error(zerr)
			return
		}
		body, err = io.ReadAll(z)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%v, %v", err, r.Header)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = r.Header
	c.bodies.Write(body)
	switch r.URL.Path {
	case "/v1/traces":
		var m tracepb.ExportTraceServiceRequest
		err = proto.Unmarshal(body, &m)
		for _, resource := range m.ResourceSpans {
			c.service = text(resource.Resource.Attributes)
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	case "/v1/logs":
		var m logspb.ExportLogsServiceRequest
		err = proto.Unmarshal(body, &m)
		for _, resource := range m.ResourceLogs {
			for _, scope := range resource.ScopeLogs {
				for _, r := range scope.LogRecords {
					c.logs = append(c.logs, r.EventName+" "+r.Body.GetStringValue()+" "+text(r.Attributes))
				}
			}
		}
	case "/v1/metrics":
		var m metricspb.ExportMetricsServiceRequest
		err = proto.Unmarshal(body, &m)
		for _, resource := range m.ResourceMetrics {
			for _, scope := range resource.ScopeMetrics {
				for _, metric := range scope.Metrics {
					c.metrics[metric.Name] = true
				}
			}
		}
	default:
		c.t.Errorf("a request for %s", r.URL)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// text returns attributes as name=value, separated by spaces.
func text(all []*commonpb.KeyValue) string {
	var b strings.Builder
	for _, a := range all {
		v := a.Value.GetStringValue()
		if _, ok := a.Value.Value.(*commonpb.AnyValue_IntValue); ok {
			v = a.Value.String()
		}
		b.WriteString(a.Key + "=" + v + " ")
	}
	return b.String()
}

// start runs an exporter to the URL, and returns it and what ends it.
func start(t *testing.T, url string, log *slog.Logger) (*Exporter, func()) {
	t.Helper()
	x, err := New(t.Context(), Config{Endpoint: url, Headers: map[string]string{"X-Key": "k"}, Version: "1",
		Log: log})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sandlot_test_total"},
		func() float64 { return 1 }))
	if err := x.UseMetrics(registry); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { x.Run(ctx) })
	end := sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(end)
	return x, end
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var call = event.Event{Time: time.Unix(100, 0), Kind: event.Call, Principal: "user:ann", Session: "box",
	Operation: "shell.execute", Name: "execute_command", Outcome: event.OK, Duration: time.Second,
	Origin: event.Origin{Token: "tok_1", Address: "192.0.2.1", Trace: parent, Method: "tools/call",
		ClientSession: "mcp1"}, RequestBytes: 12}

// A collector gets spans, log records and metrics, with the names of the semantic conventions.
func TestExport(t *testing.T) {
	c := newCollector(t)
	x, end := start(t, c.URL, slog.New(slog.DiscardHandler))
	failed := call
	failed.Outcome, failed.Trace, failed.Method, failed.Name = "TIMEOUT", "00-nonsense", "", ""
	begun := call
	begun.Outcome = event.Started
	for _, e := range []event.Event{call, failed, begun, {Kind: event.Connection, Principal: "user:ann",
		Operation: event.ServerState, Name: "docs", Outcome: "running", Offers: event.Offers{Tools: 3}}} {
		x.Observe(e)
	}
	end()
	if len(c.spans) != 2 || len(c.logs) != 4 || c.headers.Get("X-Key") != "k" ||
		!strings.Contains(c.service, "service.name=sandlot") {
		t.Fatalf("%d spans, %d logs, headers %v, service %s", len(c.spans), len(c.logs), c.headers, c.service)
	}
	s := c.spans[0]
	if s.Name != "tools/call execute_command" || s.Kind != spanpb.Span_SPAN_KIND_SERVER ||
		s.StartTimeUnixNano != 99e9 || s.EndTimeUnixNano != 100e9 || s.Status.GetCode() != 0 ||
		string(s.ParentSpanId) != "\x00\xf0\x67\xaa\x0b\xa9\x02\xb7" || s.TraceId[0] != 0x4b {
		t.Errorf("%v", s)
	}
	for _, want := range []string{"mcp.method.name=tools/call", "mcp.session.id=mcp1",
		"gen_ai.tool.name=execute_command",
		"gen_ai.operation.name=execute_tool", "client.address=192.0.2.1", "user.id=user:ann",
		"sandlot.operation=shell.execute", "sandlot.session.id=box", "sandlot.token.id=tok_1"} {
		if !strings.Contains(text(s.Attributes), want) {
			t.Errorf("there is no %s in %s", want, text(s.Attributes))
		}
	}
	if s := c.spans[1]; s.Name != "shell.execute" || len(s.ParentSpanId) > 0 ||
		s.Status.GetCode() != spanpb.Status_STATUS_CODE_ERROR || !strings.Contains(text(s.Attributes),
		"error.type=TIMEOUT") {
		t.Errorf("%v", s)
	}
	if l := c.logs[3]; !strings.HasPrefix(l, "sandlot.connection mcp.state running ") ||
		!strings.Contains(l, "sandlot.server.tools=int_value:3") {
		t.Errorf("%s", l)
	}
	if !c.metrics["sandlot_test_total"] || !c.metrics["mcp.server.operation.duration"] {
		t.Errorf("metrics: %v", c.metrics)
	}
	for s := range numSignals {
		if x.Lost(s) > 0 {
			t.Errorf("%d %s are lost", x.Lost(s), SignalNames[s])
		}
	}
}

// A collector that hangs, refuses, redirects, lies or is away costs telemetry, which is counted. Observing
// never waits, and the exporter ends.
func TestBadCollectors(t *testing.T) {
	var elsewhere atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) }))
	defer other.Close()
	away := httptest.NewServer(nil)
	away.Close()
	for name, handle := range map[string]http.HandlerFunc{
		"hangs": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the request then
			<-r.Context().Done()
		},
		"refuses": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"lies": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(bytes.Repeat([]byte("\xff\n\x1b[2J"), 1<<20))
		},
		"away": nil,
	} {
		t.Run(name, func(t *testing.T) {
			url := away.URL
			if handle != nil {
				s := httptest.NewServer(handle)
				defer s.Close()
				url = s.URL
			}
			var out bytes.Buffer
			x, end := start(t, url, slog.New(slog.NewTextHandler(&out, nil)))
			for range 3 * maxQueue {
				x.Observe(call)
			}
			end()
			if x.Lost(Traces) < 3*maxQueue || x.Lost(Logs) < 3*maxQueue || x.Lost(Metrics) < 1 {
				t.Errorf("lost: %d spans, %d log records, %d exports of metrics", x.Lost(Traces), x.Lost(Logs),
					x.Lost(Metrics))
			}
			if strings.Contains(out.String(), "\x1b") || out.Len() > 8<<10 ||
				!strings.Contains(out.String(), "telemetry") {
				t.Errorf("the log has %d bytes: %.1000q", out.Len(), out.String())
			}
		})
	}
	if elsewhere.Load() {
		t.Error("telemetry went where a redirect leads")
	}
}

// What a call pays for telemetry.
func BenchmarkObserve(b *testing.B) {
	x := &Exporter{wake: make(chan struct{}, 1)}
	for b.Loop() {
		x.Observe(call)
		if len(x.queue) == maxQueue {
			x.queue = x.queue[:0]
		}
	}
}
