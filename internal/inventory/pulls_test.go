package inventory

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/oci"
)

// silentRegistry is a registry that takes requests and does not answer them.
func silentRegistry(t *testing.T) (host string, asked <-chan struct{}) {
	t.Helper()
	first, once := make(chan struct{}), sync.Once{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(first) })
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), first
}

// until waits until the pulls are as is says.
func until(t *testing.T, p *Pulls, is func([]Pull) bool) []Pull {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		news, _ := p.News()
		if list := p.List(); is(list) {
			return list
		}
		select {
		case <-news:
		case <-time.After(time.Until(end)):
			t.Fatalf("after a minute: %+v", p.List())
		}
	}
}

// Pulls are bounded, one of the same image is the same pull, somebody can end one, and Close ends all.
func TestPulls(t *testing.T) {
	p := NewPulls(oci.Open(filepath.Join(t.TempDir(), "images"), slog.New(slog.DiscardHandler)))
	defer p.Close()
	host, asked := silentRegistry(t)
	for _, wrong := range []string{"", "A B", "https://x/y", strings.Repeat("a", 1000), "../x"} {
		if _, err := p.Start(wrong, ""); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := p.Start("python:3", "plan9/"+strings.Repeat("x", 1<<20)); !fault.Is(err, fault.InvalidParameters) ||
		len(err.Error()) > 2000 {
		t.Errorf("a platform: %.300v", err)
	}
	first, err := p.Start(host+"/a:1", "")
	if err != nil || first.State != PullRunning {
		t.Fatalf("%+v, %v", first, err)
	}
	<-asked
	if again, err := p.Start(host+"/a:1", ""); err != nil || again.ID != first.ID {
		t.Errorf("the same image: %+v, %v", again, err)
	}
	second, err := p.Start(host+"/b:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Start(host+"/c:1", ""); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("a third: %v", err)
	}
	if p.End("other") || !p.End(first.ID) {
		t.Error("the pull cannot be ended, or another one can")
	}
	list := until(t, p, func(list []Pull) bool { return list[0].State == PullFailed })
	if !strings.Contains(list[0].Problem, "somebody has ended it") || list[0].Ended == nil ||
		list[1].State != PullRunning || p.End(first.ID) {
		t.Errorf("%+v", list)
	}
	p.Close()
	if list := p.List(); list[1].ID != second.ID || !strings.Contains(list[1].Problem, "the server has stopped") {
		t.Errorf("%+v", list)
	}
	if _, err := p.Start(host+"/a:1", ""); err == nil {
		t.Error("a pull began after the end")
	}
}

// Those that have ended are kept in a bounded number.
func TestEndedPulls(t *testing.T) {
	p := NewPulls(oci.Open(filepath.Join(t.TempDir(), "images"), slog.New(slog.DiscardHandler)))
	defer p.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	missing := httptest.NewUnstartedServer(http.NotFoundHandler())
	missing.Listener.Close()
	missing.Listener = l
	missing.Start()
	defer missing.Close()
	for range keptPulls + 5 {
		one, err := p.Start(l.Addr().String()+"/a:1", "")
		if err != nil {
			t.Fatal(err)
		}
		until(t, p, func(list []Pull) bool {
			return list[len(list)-1].ID == one.ID && list[len(list)-1].State != PullRunning
		})
	}
	if list := p.List(); len(list) != keptPulls || list[0].State != PullFailed || list[0].Problem == "" {
		t.Errorf("%d: %+v", len(list), list[0])
	}
}
