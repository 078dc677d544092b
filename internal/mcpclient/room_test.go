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
	mu        sync.Mutex
	left      int64
	lostAfter time.Duration // when what is enlarged is lost; 0: never
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
	if err := f.Reserve(ctx, largest); err != nil || f.of.lostAfter == 0 {
		return ctx, err
	}
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(f.of.lostAfter, cancel)
	return ctx, nil
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

// peers returns transports of all kinds to servers that answer a request by its id and method.
func peers(t *testing.T, answer func(id, method string) string) map[string]transport.Dial {
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
	return map[string]transport.Dial{"lines": lines, "json": serve(false), "events": serve(true)}
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
	for name, dial := range peers(t, answer) {
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

// A call that takes a large answer gets one that is larger than others, whole; other calls do not, and nobody gets one
// that is larger still. All memory is given back.
func TestLarge(t *testing.T) {
	const most, all = 1 << 20, 3 << 20
	result := func(n int) string { return `{"text":"\u00e9 \"` + strings.Repeat("x", n) + `", "n":1}` }
	answer := func(id, kind string) string {
		text := `{"supportedVersions":["2026-07-28"],"capabilities":{}}`
		var n int
		if _, err := fmt.Sscanf(kind, "x%d", &n); err == nil {
			text = result(n)
		}
		return fmt.Sprintf(`{"result":%s,"jsonrpc":"2.0","id":%s}`, text, id)
	}
	for name, dial := range peers(t, answer) {
		t.Run(name, func(t *testing.T) {
			space := &rooms{left: most + largest}
			s, err := Connect(t.Context(), dial, Options{Name: "t", MaxMessage: most, MaxLarge: all,
				Reserve: space.room})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, n := range []int{100, most - 1000, most, 2 * most, all - 1000, all, all + 10*truncated} {
				for _, large := range []bool{true, false} {
					limit := most
					if large {
						limit = all
					}
					got, err := s.Call(t.Context(), Request{Method: fmt.Sprintf("x%d", n), Large: large})
					switch {
					case n < limit && (err != nil || string(got) != result(n)):
						t.Errorf("%d bytes, %v: %d bytes, %v", n, large, len(got), err)
					case n > limit+truncated && (!errors.Is(err, transport.ErrTooLarge) ||
						!strings.Contains(err.Error(), "an answer of over")):
						t.Errorf("%d bytes, %v: %v", n, large, err)
					}
				}
			}
			if name == "lines" && s.Err() != nil {
				t.Errorf("the session is over: %v", s.Err())
			}
			until(t, func() bool { space.mu.Lock(); defer space.mu.Unlock(); return space.left == most+largest })
		})
	}
}

// A large error is not copied, since its memory is somebody else's when the call has it: the call gets to know that it
// is too large.
func TestLargeError(t *testing.T) {
	const most, all = 1 << 20, 3 << 20
	answer := func(id, kind string) string {
		switch kind {
		case "large":
			return fmt.Sprintf(`{"error":{"code":1,"message":"%s"},"jsonrpc":"2.0","id":%s}`,
				strings.Repeat("x", 2<<20), id)
		case "both":
			return fmt.Sprintf(`{"result":{},"error":{"code":1,"message":"","data":"%s"},"jsonrpc":"2.0","id":%s}`,
				strings.Repeat("x", 2<<20), id)
		case "null":
			return fmt.Sprintf(`{"error":null,"result":{"x":"%s"},"jsonrpc":"2.0","id":%s}`,
				strings.Repeat("x", 2<<20), id)
		case "small":
			return fmt.Sprintf(`{"error":{"code":1,"message":"small"},"jsonrpc":"2.0","id":%s}`, id)
		}
		return fmt.Sprintf(`{"result":{"supportedVersions":["2026-07-28"],"capabilities":{}},"jsonrpc":"2.0","id":%s}`,
			id)
	}
	for name, dial := range peers(t, answer) {
		t.Run(name, func(t *testing.T) {
			space := &rooms{left: most + largest}
			s, err := Connect(t.Context(), dial, Options{Name: "t", MaxMessage: most, MaxLarge: all,
				Reserve: space.room})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, kind := range []string{"large", "both", "null", "small"} {
				_, err := s.Call(t.Context(), Request{Method: kind, Large: true})
				var e *transport.Error
				switch {
				case kind == "null" && err == nil:
				case kind == "small" && errors.As(err, &e) && e.Message == "small":
				case kind != "null" && kind != "small" && errors.Is(err, transport.ErrTooLarge):
				default:
					t.Errorf("%s: %.200v", kind, err)
				}
				until(t, func() bool { space.mu.Lock(); defer space.mu.Unlock(); return space.left == most+largest })
			}
		})
	}
}

// truncated is by how much an event may be larger than a message.
const truncated = 8 << 10

// until waits for a condition.
func until(t *testing.T, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("it never is so")
}

// A server that goes on after the memory of its large message was lost loses the call, and one that does not loses the
// session.
func TestLargeIsLost(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		t.Run(fmt.Sprint(goesOn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const most = 1 << 20
				space := &rooms{left: most + largest, lostAfter: time.Minute}
				in, stdin := io.Pipe()
				stdout, out := io.Pipe()
				go func() {
					r := bufio.NewScanner(in)
					for r.Scan() {
						all, err := transport.Decode(r.Bytes())
						if err != nil || all[0].ID == nil {
							continue
						}
						text := `{"supportedVersions":["2026-07-28"],"capabilities":{}}`
						if *all[0].Method == "large" {
							fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"x":"%s`, all[0].ID,
								strings.Repeat("x", 2<<20))
							time.Sleep(59 * time.Second)
							for range 10 {
								time.Sleep(1500 * time.Millisecond)
								if goesOn {
									fmt.Fprint(out, strings.Repeat("y", 100_000))
								}
							}
							fmt.Fprintln(out, `"}}`)
							continue
						}
						fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", all[0].ID, text)
					}
				}()
				dial := func(context.Context) (transport.Transport, error) {
					return transport.Stdio(stdout, stdin, nil), nil
				}
				s, err := Connect(t.Context(), dial, Options{Name: "t", MaxMessage: most, MaxLarge: 3 << 20,
					Reserve: space.room})
				if err != nil {
					t.Fatal(err)
				}
				_, err = s.Call(t.Context(), Request{Method: "large", Large: true, Timeout: time.Hour})
				if !errors.Is(err, transport.ErrSlow) || (s.Err() == nil) != goesOn {
					t.Errorf("%v; the session's end: %v", err, s.Err())
				}
				if space.left != most+largest {
					t.Errorf("%d bytes are left", space.left)
				}
				if _, err := s.Call(t.Context(), Request{Method: "small"}); (err == nil) != goesOn {
					t.Errorf("a later call: %v", err)
				}
				s.Close()
				in.Close()
				time.Sleep(time.Hour) // until the server has ended
			})
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
