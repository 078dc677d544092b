package bound

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// countingReader counts what is read of it, without end.
type countingReader struct{ n atomic.Int64 }

func (r *countingReader) Read(b []byte) (int, error) {
	r.n.Add(int64(len(b)))
	return len(b), nil
}

// stable waits until a number does not change any more, and returns it.
func stable(n *atomic.Int64) int64 {
	for last, same := int64(-1), 0; ; time.Sleep(20 * time.Millisecond) {
		if now := n.Load(); now == last && now > 0 {
			if same++; same == 25 {
				return now
			}
		} else {
			last, same = now, 0
		}
	}
}

// maxInFlight is what may be between two sides of which one does not read: buffers of the kernel, of loopback four
// times, and the windows of HTTP/2.
const maxInFlight = 64 << 20

// A side that does not read makes the other one wait: the server holds little of what is sent.
func TestBackpressure(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		var sent atomic.Int64
		release := make(chan struct{})
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/up" { // it never reads
				<-release
				return
			}
			for b := make([]byte, 32<<10); ; sent.Add(int64(len(b))) {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		})
		q, _ := http.NewRequest("GET", "https://"+host+"/down", nil)
		c := r.client(protocol)
		c.Timeout = 0
		resp, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if n := stable(&sent); n > maxInFlight {
			t.Errorf("%d MiB came down, and nobody reads", n>>20)
		}
		resp.Body.Close()

		body := &countingReader{}
		q, _ = http.NewRequest("POST", "https://"+host+"/up", io.NopCloser(body))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if resp, err := c.Do(q); err == nil {
				resp.Body.Close()
			}
		}()
		if n := stable(&body.n); n > maxInFlight {
			t.Errorf("%d MiB went up, and nobody reads", n>>20)
		}
		close(release)
		<-ended
	})
}

// What is compressed passes as it is, in both directions, and so does a placeholder in it.
func TestCompressed(t *testing.T) {
	both(t, func(t *testing.T, protocol string) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		io.WriteString(z, strings.Repeat("the placeholder "+mark+"\n", 100))
		z.Close()
		r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Content-Encoding") != "gzip" || q.Header.Get("Accept-Encoding") != "x-odd" {
				t.Errorf("the host got %v", q.Header)
			}
			w.Header().Set("Content-Encoding", "gzip")
			io.Copy(w, q.Body)
		})
		resp, text := r.send(r.client(protocol), "POST", "/", packed.String(), "Content-Encoding", "gzip",
			"Accept-Encoding", "x-odd", "X-Api-Key", mark)
		if text != packed.String() || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%d bytes came back of %d, %v", len(text), packed.Len(), resp.Header)
		}
	})
}
