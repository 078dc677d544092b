package bound

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
)

// direct returns a client whose connections go to the host itself.
func (r *rig) direct(protocol string) *http.Client {
	t := &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{ServerName: host, RootCAs: r.Terminator.roots,
			NextProtos: []string{protocol}}}
		return d.DialContext(ctx, "tcp", r.addr)
	}, Protocols: new(http.Protocols), DisableCompression: true}
	t.Protocols.SetHTTP1(protocol == protoH1)
	t.Protocols.SetHTTP2(protocol == protoH2)
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// compare runs a benchmark with each protocol, to the host itself and through the Terminator.
func compare(b *testing.B, handler http.HandlerFunc, f func(b *testing.B, c *http.Client)) {
	for _, protocol := range []string{protoH1, protoH2} {
		name := map[string]string{protoH1: "HTTP1", protoH2: "HTTP2"}[protocol]
		b.Run(name+"/direct", func(b *testing.B) { f(b, newRig(b, handler).direct(protocol)) })
		b.Run(name+"/bound", func(b *testing.B) { f(b, newRig(b, handler).client(protocol)) })
	}
}

func fetch(b *testing.B, c *http.Client, body io.Reader) int64 {
	q, _ := http.NewRequest("POST", "https://"+host+"/", body)
	q.Header.Set("Authorization", "Bearer "+mark)
	resp, err := c.Do(q)
	if err != nil {
		b.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkRequest measures a small request on a connection that is open.
func BenchmarkRequest(b *testing.B) {
	compare(b, func(w http.ResponseWriter, q *http.Request) { io.WriteString(w, "hello") },
		func(b *testing.B, c *http.Client) {
			for b.Loop() {
				fetch(b, c, nil)
			}
		})
}

// BenchmarkConnection measures a small request on a connection of its own.
func BenchmarkConnection(b *testing.B) {
	compare(b, func(w http.ResponseWriter, q *http.Request) { io.WriteString(w, "hello") },
		func(b *testing.B, c *http.Client) {
			for b.Loop() {
				fetch(b, c, nil)
				c.CloseIdleConnections()
			}
		})
}

const bulk = 64 << 20

// BenchmarkDownload and BenchmarkUpload measure how many bytes pass in a second.
func BenchmarkDownload(b *testing.B) {
	zero := make([]byte, 1<<20)
	compare(b, func(w http.ResponseWriter, q *http.Request) {
		for range bulk / len(zero) {
			w.Write(zero)
		}
	}, func(b *testing.B, c *http.Client) {
		b.SetBytes(bulk)
		for b.Loop() {
			if n := fetch(b, c, nil); n != bulk {
				b.Fatal(n)
			}
		}
	})
}

func BenchmarkUpload(b *testing.B) {
	compare(b, func(w http.ResponseWriter, q *http.Request) { io.Copy(io.Discard, q.Body) },
		func(b *testing.B, c *http.Client) {
			b.SetBytes(bulk)
			for b.Loop() {
				fetch(b, c, io.LimitReader(zeros{}, bulk))
			}
		})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// BenchmarkVersion measures what each call of a tool costs for bound secrets, when they have not changed.
func BenchmarkVersion(b *testing.B) {
	r := newRig(b, func(http.ResponseWriter, *http.Request) {})
	for b.Loop() {
		r.Version(owner.Principal)
	}
}
