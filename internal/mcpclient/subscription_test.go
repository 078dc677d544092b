package mcpclient

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/mcpclient/transport"
)

// listener is a program of the stateless protocol that hands out subscriptions/listen.
func listener(each func(p *program, n int, m spoken)) func(*program) {
	return func(p *program) {
		p.greetNewer()
		for n := 1; ; {
			m, ok := p.next()
			if !ok {
				return
			}
			if m.Method == "subscriptions/listen" {
				each(p, n, m)
				n++
			}
		}
	}
}

func agree(p *program, m spoken, what string) {
	p.say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{%s}}}`, m.ID, what)
}

const lists = `"toolsListChanged":true`

// TestListenAgain has a subscription break again and again: it is asked for with
// growing pauses, and what may have been missed is made up.
func TestListenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		began := time.Now()
		e := &ears{}
		s, err := Connect(t.Context(), programs(t, nil, listener(func(p *program, n int, m spoken) {
			asked = append(asked, time.Since(began))
			if !strings.Contains(string(m.Params), lists) {
				t.Errorf("asked for %s", m.Params)
			}
			agree(p, m, lists)
			if n < 5 {
				p.answer(m, `{"resultType":"complete"}`)
			}
		})), Options{Handler: e})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := "[0s 1s 3s 7s 15s]"; fmt.Sprint(asked) != want {
			t.Errorf("asked at %v, want %s", asked, want)
		}
		if got := e.all(); len(got) != 4 || got[0] != "notifications/tools/list_changed" {
			t.Errorf("announced: %v", got)
		}
		s.Close()
	})
}

func TestSubscribeIsRefused(t *testing.T) {
	tests := []struct {
		name, problem string
		each          func(p *program, m spoken)
	}{
		{"an error", "error -32601: no", func(p *program, m spoken) { p.refuse(m, -32601, "no") }},
		{"something else is agreed to", "did not agree",
			func(p *program, m spoken) { agree(p, m, `"resourceSubscriptions":["b"]`) }},
		{"something else, and the end", "did not agree", func(p *program, m spoken) {
			agree(p, m, `"resourceSubscriptions":[]`)
			p.answer(m, "{}")
		}},
		{"silence", transport.ErrTimeout.Error(), func(*program, spoken) {}},
		{"somebody else's acknowledgement", transport.ErrTimeout.Error(), func(p *program, m spoken) {
			m.ID = []byte(`"7"`)
			agree(p, m, `"resourceSubscriptions":["a"]`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := Connect(t.Context(),
					programs(t, nil, listener(func(p *program, _ int, m spoken) { tt.each(p, m) })), Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Subscribe(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("Subscribe: %v, want %q", err, tt.problem)
				}
				synctest.Wait()
				if len(s.subscriptions) != 0 {
					t.Error("the subscription is kept")
				}
				s.Close()
			})
		})
	}
}

func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &ears{}
		n := 0
		s, err := Connect(t.Context(), programs(t, nil, listener(func(p *program, _ int, m spoken) {
			n++
			switch {
			case strings.Contains(string(m.Params), lists):
				agree(p, m, lists)
			case strings.Contains(string(m.Params), `"resourceSubscriptions":["a"]`):
				agree(p, m, `"resourceSubscriptions":["a"]`)
				if n == 2 {
					p.refuse(m, -32603, "out of order")
				}
			default:
				agree(p, m, strings.Trim(strings.SplitN(string(m.Params), `"notifications":`, 2)[1], "{}"))
			}
		})), Options{Handler: e})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 2 { // twice is fine
			if err := s.Subscribe(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := e.all(); len(got) != 1 || got[0] != `notifications/resources/updated{"uri":"a"}` {
			t.Errorf("announced: %v", got)
		}
		for i := range maxSubscriptions {
			err = s.Subscribe(t.Context(), fmt.Sprint("b", i))
			if err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), "unsubscribe from one first") {
			t.Errorf("too many subscriptions: %v", err)
		}
		before := n
		for range 2 {
			if err := s.Unsubscribe(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n != before+1 {
			t.Errorf("%d requests after one subscription has ended, want that for lists", n-before)
		}
		s.Close()
		if err := s.Subscribe(t.Context(), "c"); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Subscribe after Close: %v", err)
		}
	})
}
