package bound

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"os"
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
			CF-Access-Client-Secret xi-api-key X-RapidAPI-Key X-GitHub-Token Job-Token`,
		false: `X-Original-Url X-Rewrite-Url X-Http-Method-Override X-Host X-Real-Ip Client-Ip True-Client-Ip Request-Id
			Correlation-Id X-Trace-Id X-Amzn-Trace-Id Uber-Trace-Id Sentry-Trace Idempotency-Key Last-Event-Id
			X_Forwarded_For X-Forwarded-For Cookie Cookie2 X-Cookie-Token Referer User-Agent Host Origin Via
			Proxy-Authorization Proxy_Authorization Sec-Websocket-Key X-Idempotency-Key X-Cache-Key Surrogate-Key
			X-Authority X-Author X-Trace-Token X-Request-Id-Token X-Forwarded-Token Lock-Token Traceparent Baggage
			X-Odd Content-Type If-Match Accept Forwarded X-Client-Trace-Id Priority Slug Profile
			X-Amz-Meta-Token X-Goog-Meta-Api-Key X_Goog_Meta_Token X-Ms-Meta-Secret X-Object-Meta-Authorization
			X-Container-Meta-Access-Key X-Account-Meta-Temp-Url-Key X-Bz-Info-Token X-Oss-Meta-Auth X-Cos-Meta-Key
			Opc-Meta-Password X-Archive-Meta00-Token X-Rax-Meta-Credential Metadata-Token X-Password X-Credential
			X-Amz-Server-Side-Encryption-Customer-Key X-Api-Key-Name X-My-Api-Key X-Authorization Authorization-2`,
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

// TestStoredMetadata: a host that stores headers, as object stores do, has no value to give back. What it has otherwise
// is hidden in the headers of later responses, too, whose requests have sent nothing.
func TestStoredMetadata(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		stored := http.Header{}
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			if q.Method == http.MethodPut {
				stored = q.Header.Clone()
				return
			}
			w.Header().Set("X-Stored", "Bearer "+value)
			w.Header().Set("Trailer", "Late")
			stored.Write(w)
			w.Header().Set("Late", value)
		})
		c := r.client(protocol)
		for _, name := range []string{"X-Goog-Meta-Token", "X-Amz-Meta-Api-Key", "X-Ms-Meta-Secret", "X-Object-Meta-Auth",
			"X-Bz-Info-Password"} {
			r.send(c, "PUT", "/b/o", "", "Authorization", "Bearer "+mark, name, mark)
			if !strings.Contains(r.got(), value) {
				t.Error("the host got no value at all")
			}
			resp, text := r.send(c, "GET", "/b/o", "", "X-Nothing", "sent")
			all := fmt.Sprint(resp.Header, resp.Trailer)
			if strings.Contains(text, name+": "+value) || !strings.Contains(text, name+": "+mark) {
				t.Errorf("the host gives back %s", text)
			}
			if strings.Contains(all, value) || resp.Header.Get("X-Stored") != "Bearer "+mark ||
				resp.Trailer.Get("Late") != mark {
				t.Errorf("%s: the program got %s", name, all)
			}
		}
		r.bind(func(s *vault.BoundSecret) { s.Basic, s.Value = true, "user:"+value })
		resp, _ := r.send(c, "GET", "/b/o", "")
		if all := fmt.Sprint(resp.Header, resp.Trailer); strings.Contains(all, value) {
			t.Errorf("with user and password the program got %s", all)
		}
	})
}

// TestListOfHeaders: the guide has the list.
func TestListOfHeaders(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guide/connections.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range carrying {
		if !strings.Contains(strings.ToLower(string(guide)), "`"+name+"`") {
			t.Errorf("docs/guide/connections.md does not name %s", name)
		}
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
