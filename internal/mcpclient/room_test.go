package mcpclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/mcpclient/transport"
)

// rooms gives room to so many bytes in all, and refuses the rest at once.
type rooms struct {
	mu   sync.Mutex
	left int64
}

// largest is what Enlarge reserves.
const largest = 4 << 20

var errFull = errors.New("there is no room")

// full is one message's.
type full struct {
	of   *rooms
	mine int64
}

func (r *rooms) room() transport.Reservation { return &full{of: r} }

func (f *full) Reserve(_ context.Context, n int64) error {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if n > f.of.left {
		return errFull
	}
	f.of.left -= n
	f.mine += n
	return nil
}

func (f *full) Enlarge(ctx context.Context) (context.Context, error) {
	f.ShrinkTo(0)
	return ctx, f.Reserve(ctx, largest)
}

func (f *full) ShrinkTo(n int64) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if more := f.mine - n; more > 0 {
		f.of.left += more
		f.mine -= more
	}
}

func (f *full) Release() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.left += f.mine
	f.mine = 0
}

// A large answer is read when there is room, which is the caller's then; a call for
// which there is none ends with the reason, and the session goes on. All is given back,
// over each transport.
func TestRoom(t *testing.T) {
	const most = 1 << 20
	answer := func(id, kind string) string {
		result := `{}`
		switch kind {
		case "large":
			result = `{"text":"` + strings.Repeat("x", 300<<10) + `"}`
		case "server/discover":
			result = `{"supportedVersions":["2026-07-28"],"capabilities":{}}`
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
	}
	lines := func(context.Context) (transport.Transport, error) {
		in, stdin := io.Pipe()
		stdout, out := io.Pipe()
		go func() {
			defer out.Close()
			r := bufio.NewScanner(in)
			for r.Scan() {
				if all, err := transport.Decode(r.Bytes()); err == nil && all[0].ID != nil {
					fmt.Fprintln(out, answer(string(all[0].ID), *all[0].Method))
				}
			}
		}()
		return transport.Stdio(stdout, stdin, nil), nil
	}
	serve := func(events bool) transport.Dial {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			all, err := transport.Decode(b)
			if err != nil || all[0].ID == nil {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			text := answer(string(all[0].ID), *all[0].Method)
			w.Header().Set("Content-Type", "application/json")
			if events {
				w.Header().Set("Content-Type", "text/event-stream")
				text = "data: " + text + "\n\n"
			}
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(s.Close)
		return overHTTP(s.URL)
	}
	for name, dial := range map[string]transport.Dial{"lines": lines, "json": serve(false), "events": serve(true)} {
		t.Run(name, func(t *testing.T) {
			all := &rooms{left: most}
			s, err := Connect(t.Context(), dial, Options{Name: "t", MaxMessage: most, Reserve: all.room})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var held transport.Reservation
			hold := func(r transport.Reservation) { held = r }
			if _, err := s.Call(t.Context(), Request{Method: "large", TakeReservation: hold}); err != nil ||
				held == nil {
				t.Fatalf("%v, it holds %v", err, held)
			}
			if _, err := s.Call(t.Context(), Request{Method: "large"}); all.left < 300<<10 && !errors.Is(err, errFull) {
				t.Errorf("with %d left: %v", all.left, err)
			}
			if _, err := s.Call(t.Context(), Request{Method: "small"}); err != nil {
				t.Errorf("a small one: %v", err)
			}
			held.Release()
			for range 3 { // what nobody holds is given back at once
				if _, err := s.Call(t.Context(), Request{Method: "large"}); err != nil {
					t.Error(err)
				}
			}
			if all.left != most {
				t.Errorf("of %d bytes %d are left", most, all.left)
			}
		})
	}
}

// A large message that does not go on, or is none, holds no room for long.
func TestRoomIsNotHeldForEver(t *testing.T) {
	const most = 1 << 20
	for name, says := range map[string]string{"stalls": `{"jsonrpc":"2.0","id":2,"result":{"text":"` +
		strings.Repeat("x", 200<<10), "blank": strings.Repeat(" ", 200<<10)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := &rooms{left: most}
				in, stdin := io.Pipe()
				stdout, out := io.Pipe()
				go func() {
					r := bufio.NewScanner(in)
					r.Scan()
					fmt.Fprintln(out,
						`{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}`)
					r.Scan()
					_, _ = io.WriteString(out, says) // an error: nobody reads any more
					if name == "blank" {
						out.Close()
					}
					for r.Scan() {
					}
				}()
				dial := func(context.Context) (transport.Transport, error) {
					return transport.Stdio(stdout, stdin, nil), nil
				}
				s, err := Connect(t.Context(), dial, Options{Name: "t", MaxMessage: most, Reserve: all.room})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, err = s.Call(t.Context(), Request{Method: "x", Timeout: time.Hour})
				if err == nil || time.Since(began) > 2*time.Minute {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				s.Close()
				in.Close()
				if synctest.Wait(); all.left != most {
					t.Errorf("of %d bytes %d are left", most, all.left)
				}
			})
		})
	}
}
