package dockercommand

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// TestSilence: calls without a deadline to a daemon that never answers fail, however many there are. When it answers,
// they succeed.
func TestSilence(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	speaks := make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-speaks:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Api-Version", "1.47")
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/v1.47/info") {
			_, _ = io.WriteString(w, `{"ID":"x"}`)
		}
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	s := &silence{timeout: 300 * time.Millisecond}
	c, err := client.New(append(s.options(), client.WithHost("unix://"+socket))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := c.Info(context.Background(), client.InfoOptions{})
			if !client.IsErrConnectionFailed(err) || !strings.Contains(err.Error(), errSilent.Error()) {
				t.Errorf("a call to a silent daemon: %v", err)
			}
		})
	}
	all.Wait()
	close(speaks)
	for {
		info, err := c.Info(t.Context(), client.InfoOptions{})
		if err == nil && info.Info.ID == "x" {
			break
		}
		if !client.IsErrConnectionFailed(err) {
			t.Fatalf("when the daemon answers: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
