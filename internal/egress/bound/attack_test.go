package bound

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/vault"
)

// A host that answers TRACE sends back in the body what it got, so that none gets one.
func TestMethodsThatEcho(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			b, _ := httputil.DumpRequest(q, false)
			w.Write(b)
		})
		for _, method := range []string{"TRACE", "TRACK", "trace", "Track"} {
			resp, text := r.send(r.client(protocol), method, "/", "", "X-Api-Key", mark)
			if resp.StatusCode != 405 || strings.Contains(text, value) || !strings.Contains(text, "is not passed on") ||
				r.got() != "" {
				t.Errorf("%s: %d %q", method, resp.StatusCode, text)
			}
		}
	})
}

// Names of headers in which APIs take keys, and of those that are logged, sent on or sent back.
func TestHeadersWithCredentials(t *testing.T) {
	r := newRig(t, func(http.ResponseWriter, *http.Request) {})
	secret := &r.secrets.list[0]
	for want, names := range map[bool]string{
		true: `Authorization X-Api-Key Api-Key Private-Token X-Auth-Token X-Goog-Api-Key DD-API-KEY X-Vault-Token
			Ocp-Apim-Subscription-Key X-Shopify-Access-Token Circle-Token apikey x-apikey X_Api_Key X-Auth-Key
			CF-Access-Client-Secret X-Password X-Credential xi-api-key X-RapidAPI-Key`,
		false: `X-Original-Url X-Rewrite-Url X-Http-Method-Override X-Host X-Real-Ip Client-Ip True-Client-Ip Request-Id
			Correlation-Id X-Trace-Id X-Amzn-Trace-Id Uber-Trace-Id Sentry-Trace Idempotency-Key Last-Event-Id
			X_Forwarded_For X-Forwarded-For Cookie Cookie2 X-Cookie-Token Referer User-Agent Host Origin Via
			Proxy-Authorization Proxy_Authorization Sec-Websocket-Key X-Idempotency-Key X-Cache-Key Surrogate-Key
			X-Authority X-Author X-Trace-Token X-Request-Id-Token X-Forwarded-Token Lock-Token Traceparent Baggage
			X-Odd Content-Type If-Match Accept Forwarded X-Client-Trace-Id Priority Slug Profile`,
	} {
		for name := range strings.FieldsSeq(names) {
			if got := goesInto(secret, http.CanonicalHeaderKey(name)); got != want {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
	c := r.client(protoH1)
	r.send(c, "GET", "/", "", "X-Original-Url", "/"+mark, "X_forwarded_for", mark, "Idempotency-Key", mark)
	if got := r.got(); strings.Contains(got, value) || strings.Count(got, mark) != 3 {
		t.Errorf("the host got %s", got)
	}
	r.bind(func(s *vault.BoundSecret) { s.Header = "x-odd" })
	r.send(c, "GET", "/", "", "X-Odd", mark)
	if got := r.got(); !strings.Contains(got, "X-Odd: "+value) {
		t.Errorf("with a header that the user names, the host got %s", got)
	}
}

// A host that sends the value back as a header's name tells the program nothing.
func TestEchoedNames(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("X-"+value, "x")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Trailer", "Announced-"+value)
			w.Header().Set("Good", "kept")
			w.Write([]byte("x"))
			w.Header().Set("Announced-"+value, "x")
			w.Header().Set(http.TrailerPrefix+"Late-"+value, "x")
			w.Header().Set(http.TrailerPrefix+"Late", "kept")
		})
		resp, _ := r.send(r.client(protocol), "GET", "/", "", "Authorization", "Bearer "+mark)
		all := fmt.Sprint(resp.Header, resp.Trailer)
		if strings.Contains(strings.ToLower(all), value) || resp.Header.Get("Good") != "kept" ||
			resp.Trailer.Get("Late") != "kept" || !strings.Contains(r.got(), value) {
			t.Errorf("the program got %s", all)
		}
	})
}

// The text of a response that switches protocols is not the host's.
func TestEchoedStatus(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: odd\r\n\r\n", q.Header.Get("X-Api-Key"))
		rw.Flush()
	})
	c, err := r.connect(protoH1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: odd\r\nX-Api-Key: %s\r\n\r\n",
		host, mark)
	got, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(got), "HTTP/1.1 101 ") || strings.Contains(string(got), value) {
		t.Errorf("the program got %s", got)
	}
}

// What cannot be read is no change for a sandbox; once it can be read, the sandbox gets it.
func TestSecretsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &secrets{list: []vault.BoundSecret{{Name: "KEY", Value: value,
			Binding: vault.Binding{Hosts: []string{host + ":443"}, Placeholder: mark}}}}
		b := New(s, slog.New(slog.DiscardHandler))
		ann := owner.Principal
		for _, first := range []bool{true, false} {
			s.err = errors.New("the database is away")
			if !first {
				b.Changed(ann)
			}
			before := b.Version(ann)
			for range 2 { // the second time it is not read again
				if _, err := b.Settings(ann, owner.Session); !errors.Is(err, s.err) {
					t.Errorf("settings that cannot be read: %v", err)
				}
			}
			s.err = nil
			time.Sleep(retryDelay)
			if after := b.Version(ann); after == before {
				t.Errorf("the version is %d before and after", after)
			}
			if got, err := b.Settings(ann, owner.Session); err != nil || got.Env["KEY"] != mark {
				t.Errorf("%v, %v", got.Env, err)
			}
		}
	})
}
