// Package forward sends requests to the server that acts for their principal, where several servers share a database.
//
// A request goes on as it is: its body, its stream or its upgraded connection passes through. The servers know each other
// by their certificates, whose hashes are in the database, so what one of them says of the principal of a request is what
// it has authenticated. A request is sent on once: who gets it serves it, or says that it is not the owner.
package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Peer is another server.
type Peer struct{ Address, Fingerprint string }

// Place is where requests of a unit are served: here, until the context ends, or by the peer.
type Place struct {
	Epoch int64 // of the ownership
	Here  context.Context
	Peer  Peer
}

// Owners knows which server acts for a unit (auth.UnitOf).
type Owners interface {
	// Find returns the place of a unit. It may be wrong if it is another server, and right after Forget.
	Find(ctx context.Context, unit string) (Place, error)
	Forget(unit string)
	// Owned returns the place of a unit that this server owns with an epoch.
	Owned(unit string, epoch int64) (Place, bool)
	// Known reports whether a server has the certificate with a fingerprint.
	Known(ctx context.Context, fingerprint string) bool
}

// Config configures a Forwarder.
type Config struct {
	Owners      Owners
	Certificate tls.Certificate
	Log         *slog.Logger
	// AskInterval is the time between two questions to a server whether it still answers, while it has requests of this
	// one; 0: two seconds. It gets as long to answer.
	AskInterval time.Duration
}

// Forwarder sends requests on.
type Forwarder struct {
	Config

	mu    sync.Mutex // guards what follows
	peers map[string]*peer
}

const (
	dialTimeout = 3 * time.Second
	askInterval = 2 * time.Second
	// unanswered questions in succession make a server count as one that hangs.
	unanswered = 3
	maxPeers   = 1000 // that are remembered
	// header is what a server says of a request to the next one. From anybody else it means nothing.
	header = "Sandlot-Forwarded"
	// notOwner marks the answer of a server that does not serve the request.
	notOwner  = "Sandlot-Not-Owner"
	alivePath = "/sandlot/alive"
	retryKey  = "Idempotency-Key"
)

// carried is what the header has.
type carried struct {
	Principal auth.Principal
	Epoch     int64
	Remote    string // the client's address
	Address   string // see Call
	RetryKey  []string
}

// Call is what a server knows of a request.
type Call struct {
	Principal auth.Principal // authenticated
	Address   string         // scheme and host to which the client has sent the request; empty: not known
	Begin     func()         // is called before the request is sent on
	Fail      func(error)    // gets the fault if there is no answer
}

// New returns a Forwarder. The caller closes it.
func New(c Config) *Forwarder {
	if c.AskInterval == 0 {
		c.AskInterval = askInterval
	}
	return &Forwarder{Config: c, peers: map[string]*peer{}}
}

// Close ends the connections that wait for requests.
func (f *Forwarder) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		p.transport.CloseIdleConnections()
	}
	clear(f.peers)
}

// Serve serves a request of a principal: by here, whose context ends when this server is not the owner any longer, or by
// the owner.
func (f *Forwarder) Serve(w http.ResponseWriter, r *http.Request, c Call, here http.Handler) {
	unit := auth.UnitOf(c.Principal.ID)
	for last := false; ; last = true {
		place, err := f.Owners.Find(r.Context(), unit)
		if err != nil {
			c.Fail(err)
			return
		}
		if place.Here != nil {
			serveWhile(place.Here, w, r, here)
			return
		}
		c.Begin()
		err = f.send(w, r, c, place)
		if !errors.Is(err, errAgain) {
			if err != nil {
				c.Fail(err)
			}
			return
		}
		f.Owners.Forget(unit)
		if last {
			c.Fail(errors.Unwrap(err))
			return
		}
	}
}

// serveWhile serves a request with a context that ends with the ownership, too.
func serveWhile(owner context.Context, w http.ResponseWriter, r *http.Request, here http.Handler) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(owner, func() { cancel(context.Cause(owner)) })()
	here.ServeHTTP(w, r.WithContext(ctx))
}

// again is the error of a request that was not done, and may be sent to another server.
type again struct{ fault error }

var errAgain = &again{}

func (a *again) Error() string        { return "the owner has changed" }
func (a *again) Unwrap() error        { return a.fault }
func (a *again) Is(target error) bool { return target == errAgain }

// unread is the body of a request, which stays usable if nothing of it was sent.
type unread struct {
	io.ReadCloser
	used atomic.Bool
}

func (u *unread) Read(b []byte) (int, error) {
	u.used.Store(true)
	return u.ReadCloser.Read(b)
}

// Close does nothing: the server of the client closes the body.
func (u *unread) Close() error { return nil }

// send sends a request to a server, and its answer to the client. Its error is that there was no answer.
func (f *Forwarder) send(w http.ResponseWriter, r *http.Request, c Call, place Place) (result error) {
	text, err := json.Marshal(carried{c.Principal, place.Epoch, r.RemoteAddr, c.Address, r.Header.Values(retryKey)})
	if err != nil {
		return err
	}
	to := f.peer(place.Peer)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer to.begin(cancel)()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	out := r.WithContext(ctx)
	body := &unread{ReadCloser: http.NoBody}
	if r.Body != nil && r.Body != http.NoBody {
		body.ReadCloser = r.Body
		out.Body = body
	}
	proxy := httputil.ReverseProxy{Transport: to.transport, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(f.Log.Handler(), slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = "https", place.Peer.Address, pr.In.URL.RawQuery
			pr.Out.Host = pr.In.Host
			h := pr.Out.Header
			h.Set(header, base64.StdEncoding.EncodeToString(text))
			h.Del(retryKey) // which would make the transport send a request twice
			h.Del("Expect")
			if out.Body == body {
				h.Set("Expect", "100-continue") // so that another server can get the body
			}
		},
		ModifyResponse: func(a *http.Response) error {
			if a.StatusCode == http.StatusMisdirectedRequest && a.Header.Get(notOwner) != "" {
				return errAgain
			}
			a.Header.Del("X-Request-Id") // the client knows that of this server
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if r.Context().Err() != nil { // the client has left, or its token has ended
				result = fault.From(context.Cause(r.Context()))
				return
			}
			result = f.outcome(ctx, place.Peer, err, sent.Load() && !isRefused(err), body.used.Load())
		}}
	proxy.ServeHTTP(&passing{w, http.Header{}}, out)
	return result
}

// isRefused reports whether a server has refused the connection, since it does not know the certificate of this one. With
// TLS 1.3 that comes to light when the request was written, which nobody has read.
func isRefused(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" && strings.Contains(alert.Err.Error(), "bad certificate")
}

// outcome returns the fault of a request that was not answered, by what is known of it.
func (f *Forwarder) outcome(ctx context.Context, p Peer, err error, sent, read bool) error {
	hangs := errors.Is(context.Cause(ctx), errHangs)
	var done error
	switch {
	case errors.Is(err, errAgain) && !read:
		return &again{fault.New(fault.Connection, "the server that acts for you has changed twice; nothing was done").
			Advise("Try again")}
	case errors.Is(err, errAgain):
		done = fault.New(fault.Connection, "the server that acts for you has changed just now; nothing was done").
			Advise("Try again")
	case !sent && !hangs && ctx.Err() == nil:
		f.Log.Warn("another server cannot be reached", "address", p.Address, "error", err)
		done = fault.Wrap(fault.Connection, err, "the server that acts for you, at %s, cannot be reached; nothing was done",
			p.Address).Advise("Try again in a moment", "Ask the operator whether that server and the network to it work")
		if !read {
			return &again{done}
		}
	case !sent:
		done = fault.Wrap(fault.Connection, err, "the server that acts for you, at %s, does not answer; nothing was done",
			p.Address).Advise("Try again later", "Ask the operator to look at that server")
	case hangs:
		done = fault.Wrap(fault.Connection, err, "the server that acts for you, at %s, does not answer any longer. The "+
			"call may have been carried out, or a part of it", p.Address).With("may_have_run", true).
			Advise("Look at what it has done before you repeat it", "Ask the operator to look at that server")
	default:
		done = fault.Wrap(fault.Connection, err, "the server that acts for you, at %s, has ended, or the connection to it "+
			"has. The call may have been carried out, or a part of it", p.Address).With("may_have_run", true).
			Advise("Look at what it has done before you repeat it")
	}
	return done
}

// passing is the response writer of a request that is sent on. Interim answers are for this server alone: the proxy would
// also remove with each what other handlers have put into the header.
type passing struct {
	http.ResponseWriter
	header http.Header // of the owner's answer
}

func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *passing) Header() http.Header { return p.header }

func (p *passing) WriteHeader(code int) {
	if code < 200 && code != http.StatusSwitchingProtocols {
		return
	}
	for name, values := range p.header {
		p.ResponseWriter.Header()[name] = append(p.ResponseWriter.Header()[name], values...)
	}
	p.ResponseWriter.WriteHeader(code)
}

// Hijack is for http.ResponseController: a connection that leaves HTTP has no deadline.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	return c, rw, err
}

type carriedKey struct{}

// Principal returns the principal of a request that another server has sent on, which has authenticated it.
func Principal(ctx context.Context) (auth.Principal, bool) {
	c, ok := ctx.Value(carriedKey{}).(carried)
	return c.Principal, ok
}

// Address returns scheme and host to which the client has sent a request that another server has sent on.
func Address(ctx context.Context) (string, bool) {
	c, ok := ctx.Value(carriedKey{}).(carried)
	return c.Address, ok
}

// Handler returns the handler for a listener with TLS: it serves what other servers send on, with a context that
// Principal and Address know.
func (f *Forwarder) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.Header.Get(header)
		if text == "" && r.URL.Path == alivePath {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		var c carried
		b, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err != nil || c.Principal.ID == "" {
			http.Error(w, "this address is for other servers", http.StatusBadRequest)
			return
		}
		place, ok := f.owned(r.Context(), auth.UnitOf(c.Principal.ID), c.Epoch)
		if !ok {
			w.Header().Set(notOwner, "1")
			w.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		r.Header.Del(header)
		if len(c.RetryKey) > 0 {
			r.Header[retryKey] = c.RetryKey
		}
		r.RemoteAddr = c.Remote
		serveWhile(place.Here, w, r.WithContext(context.WithValue(r.Context(), carriedKey{}, c)), next)
	})
}

// owned returns the place of a unit if this server owns it with an epoch. It may have to load the unit first.
func (f *Forwarder) owned(ctx context.Context, unit string, epoch int64) (Place, bool) {
	if place, ok := f.Owners.Owned(unit, epoch); ok {
		return place, true
	}
	place, err := f.Owners.Find(ctx, unit)
	return place, err == nil && place.Here != nil && place.Epoch == epoch
}
