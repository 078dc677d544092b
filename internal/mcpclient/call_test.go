package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

// after returns a program that does the older handshake and then something.
func after(f func(p *program)) func(*program) {
	return func(p *program) {
		if p.greet() {
			f(p)
		}
	}
}

// TestAnswers gives a server the word, and says what a call makes of it.
func TestAnswers(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	tooDeep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	tests := []struct {
		name, say, want, problem string
	}{
		{"as it came",
			`{"jsonrpc":"2.0","id":ID,"result":{"n":12345678901234567890.10, "x":{"type":"hologram","<&>":1}}}`,
			`{"n":12345678901234567890.10, "x":{"type":"hologram","<&>":1}}`, ""},
		{"an error",
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no","data":{"big":123456789012345678901}}}`, "",
			"error -32602: no"},
		{"both", `{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"no"}}`, "", "error 1: no"},
		{"no result", `{"jsonrpc":"2.0","id":ID,"result":null}`, "", "with no result"},
		{"a result that is not an object", `{"jsonrpc":"2.0","id":ID,"result":[1]}`, "", "not an object"},
		{"a strange error", `{"jsonrpc":"2.0","id":ID,"error":"broken"}`, "", "broken"},
		{"an id that is text", `{"jsonrpc":"2.0","id":"ID","result":{}}`, "", "timeout"},
		{"an id with a fraction", `{"jsonrpc":"2.0","id":ID.0,"result":{}}`, "", "timeout"},
		{"somebody else's id", `{"jsonrpc":"2.0","id":ID1,"result":{}}`, "", "timeout"},
		{"a negative id", `{"jsonrpc":"2.0","id":-ID,"result":{}}`, "", "timeout"},
		{"a huge id", `{"jsonrpc":"2.0","id":ID000000000000000000000000000000,"result":{}}`, "", "timeout"},
		{"no id", `{"jsonrpc":"2.0","result":{}}`, "", "timeout"},
		{"twice", `{"jsonrpc":"2.0","id":ID,"result":{"first":1}}` + "\n" +
			`{"jsonrpc":"2.0","id":ID,"result":{"second":1}}`, `{"first":1}`, ""},
		{"the id given twice", `{"jsonrpc":"2.0","id":ID1,"id":ID,"result":{}}`, `{}`, ""},
		{"banners around", "\nStarting…\n{not json\n{\"level\":\"info\"}\n[INFO] hi\nnull\n\x00\xff\n" +
			`  {"jsonrpc":"2.0","id":ID,"result":{}}  ` + "\r", `{}`, ""},
		{"after a byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":ID,"result":{}}`, `{}`, ""},
		{"in an array", `[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":ID,"result":{}}]`, `{}`,
			""},
		{"in a huge array", `[` + strings.Repeat(`{"method":"x"},`, 2000) + `{"jsonrpc":"2.0","id":ID,"result":{}}]`,
			"", "timeout"},
		{"in an array that is cut off", `[{"jsonrpc":"2.0","id":ID,"result":{}},`, "", "timeout"},
		{"bytes that are not text", `{"jsonrpc":"2.0","id":ID,"result":{"a":"` + "\xff" + `"}}`, "{\"a\":\"\ufffd\"}",
			""},
		{"deep", `{"jsonrpc":"2.0","id":ID,"result":{"a":` + deep + `}}`, `{"a":` + deep + `}`, ""},
		{"too deep", `{"jsonrpc":"2.0","id":ID,"result":{"a":` + tooDeep + `}}`, "", "not JSON that can be read"},
		{"too long", `{"jsonrpc":"2.0","id":ID,"result":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`, "",
			transport.ErrTooLarge.Error()},
		{"too long, and the id comes last", `{"result":{"a":"` + strings.Repeat("x", 1<<20) +
			`"},"jsonrpc":"2.0","id":ID}`, "", transport.ErrTooLarge.Error()},
		{"too long, and not an answer", `{"method":"x","a":"` + strings.Repeat("x", 1<<20) + `","id":ID}`, "",
			"timeout"},
		{"an answer that is cut off", `{"jsonrpc":"2.0","id":ID,"result":{"a":`, "", "not JSON that can be read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := Connect(t.Context(), programs(t, nil, after(func(p *program) {
					m, _ := p.next()
					p.say("%s", strings.ReplaceAll(tt.say, "ID", string(m.ID)))
					ignore(p)
				})), Options{MaxMessage: 1 << 20, StatefulFirst: true})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				got, err := s.Call(t.Context(), Request{Method: "tools/call"})
				switch {
				case tt.problem == "timeout":
					if !errors.Is(err, transport.ErrTimeout) {
						t.Errorf("%s, %v; want a timeout", got, err)
					}
				case tt.problem != "":
					if err == nil || !strings.Contains(err.Error(), tt.problem) {
						t.Errorf("%.100s, %v; want %q", got, err, tt.problem)
					}
				case err != nil || string(got) != tt.want:
					t.Errorf("%.200s, %v; want %.200s", got, err, tt.want)
				}
				var said *transport.Error
				if tt.name == "an error" && (!errors.As(err, &said) ||
					string(said.Data) != `{"big":123456789012345678901}`) {
					t.Errorf("the error's data is lost: %#v", err)
				}
			})
		})
	}
}

func TestNoise(t *testing.T) {
	noLeaks(t)
	heard := make(chan string, 10)
	s := connected(t, programs(t, func(line []byte) { heard <- string(line) }, func(p *program) {
		p.say("hello\n\n%s", strings.Repeat("y", 1<<20))
		older(p)
	}), Options{MaxMessage: 1 << 10})
	if got := <-heard; got != "hello" {
		t.Errorf("%q", got)
	}
	if got := <-heard; len(got) > 4<<10 || !strings.HasPrefix(got, "yyy") {
		t.Errorf("%d bytes", len(got))
	}
	if _, err := s.Call(t.Context(), Request{Method: "ping"}); err != nil {
		t.Error(err)
	}
}

// TestHugeLine has a server answer with more than anyone takes by default.
func TestHugeLine(t *testing.T) {
	noLeaks(t)
	s := connected(t, programs(t, nil, after(func(p *program) {
		m, _ := p.next()
		p.answer(m, `{"a":"`+strings.Repeat("x", 20<<20)+`"}`)
		m, _ = p.next()
		p.answer(m, `{"a":"`+strings.Repeat("x", 10<<20)+`"}`)
		serve(p)
	})), Options{StatefulFirst: true})
	if _, err := s.Call(t.Context(), Request{Method: "x"}); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("20 MiB: %v", err)
	}
	if got, err := s.Call(t.Context(), Request{Method: "x"}); err != nil || len(got) < 10<<20 {
		t.Errorf("10 MiB: %d bytes, %v", len(got), err)
	}
}

// TestPartialLines writes a message byte by byte, and the last one without an
// end of its line.
func TestPartialLines(t *testing.T) {
	noLeaks(t)
	s := connected(t, programs(t, nil, after(func(p *program) {
		m, _ := p.next()
		for _, b := range []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"a":1}}`, m.ID)) {
			p.out.Write([]byte{b})
		}
	})), Options{})
	got, err := s.Call(t.Context(), Request{Method: "x"})
	if err != nil || string(got) != `{"a":1}` {
		t.Errorf("%s, %v", got, err)
	}
	<-s.Done()
	if !errors.Is(s.Err(), transport.ErrClosed) || !errors.Is(s.Err(), io.EOF) && !strings.Contains(s.Err().Error(),
		"ended its output") {
		t.Errorf("%v", s.Err())
	}
	if _, err := s.Call(t.Context(), Request{Method: "x"}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestDeathInTheMiddle(t *testing.T) {
	noLeaks(t)
	s := connected(t, programs(t, nil, after(func(p *program) {
		m, _ := p.next()
		p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.ID)
	})), Options{})
	n := 0
	_, err := s.Call(t.Context(), Request{Method: "x", Progress: func(json.RawMessage) { n++ }})
	if !errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionLost) || n != 1 {
		t.Errorf("%v, %d notifications of progress", err, n)
	}
}

// TestProgressInWireOrder has many calls at once whose progress comes just
// before their results.
func TestProgressInWireOrder(t *testing.T) {
	noLeaks(t)
	const calls, each = 20, 200
	s := connected(t, programs(t, nil, after(func(p *program) {
		var all []spoken
		for range calls {
			m, _ := p.next()
			all = append(all, m)
		}
		for i := range each {
			for _, m := range all {
				p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`,
					m.ID, i)
			}
		}
		for _, m := range all {
			p.answer(m, "{}")
		}
		ignore(p)
	})), Options{})
	done := make(chan error)
	for range calls {
		go func() {
			var got []string
			_, err := s.Call(t.Context(), Request{Method: "x",
				Progress: func(p json.RawMessage) { got = append(got, string(p)) }})
			for i, p := range got {
				if p != fmt.Sprintf(`{"progress":%d}`, i) {
					err = fmt.Errorf("number %d is %s", i, p)
					break
				}
			}
			if len(got) != each {
				err = fmt.Errorf("%d notifications, want %d (%v)", len(got), each, err)
			}
			done <- err
		}()
	}
	for range calls {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestFloodWaits has a server send progress without end to a call that does not
// take it: no more is read than is bounded.
func TestFloodWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		s, err := Connect(t.Context(), programs(t, nil, after(func(p *program) {
			m, _ := p.next()
			for {
				n, err := fmt.Fprintf(p.out,
					`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"x":"%s"}}`+"\n",
					m.ID, strings.Repeat("x", 1000))
				if err != nil {
					return
				}
				sent.Add(int64(n))
			}
		})), Options{StatefulFirst: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		taken := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := s.Call(ctx, Request{Method: "x", Progress: func(json.RawMessage) { <-taken }})
			done <- err
		}()
		synctest.Wait()
		if n := sent.Load(); n > 4*maxQueued {
			t.Errorf("%d bytes were read for a call that takes none", n)
		}
		cancel()
		close(taken)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTimeouts(t *testing.T) {
	tests := []struct {
		name   string
		r      Request
		beats  int // of progress, 10 s apart
		took   time.Duration
		answer bool
	}{
		{"no sign of life", Request{Timeout: 15 * time.Second}, 0, 15 * time.Second, false},
		{"by default", Request{}, 0, time.Minute, false},
		{"progress extends it", Request{Timeout: 15 * time.Second}, 5, 65 * time.Second, false},
		{"and an answer ends it", Request{Timeout: 15 * time.Second}, 5, 60 * time.Second, true},
		{"but not for ever", Request{Timeout: 15 * time.Second, TotalTimeout: 35 * time.Second}, 100, 35 * time.Second,
			false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cancelled := make(chan spoken, 1)
				s, err := Connect(t.Context(), programs(t, nil, after(func(p *program) {
					m, _ := p.next()
					go func() {
						for range tt.beats {
							time.Sleep(10 * time.Second)
							if _, err := fmt.Fprintf(p.out,
								`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`+"\n", m.ID); err != nil {
								return
							}
						}
						if tt.answer {
							time.Sleep(10 * time.Second)
							p.answer(m, "{}")
						}
					}()
					if c, ok := p.wait("notifications/cancelled"); ok {
						cancelled <- c
					}
					close(cancelled)
					ignore(p)
				})), Options{StatefulFirst: true})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				tt.r.Method = "tools/call"
				_, err = s.Call(t.Context(), tt.r)
				if took := time.Since(began); took != tt.took {
					t.Errorf("it took %s, want %s", took, tt.took)
				}
				if errors.Is(err, transport.ErrTimeout) == tt.answer {
					t.Errorf("Call: %v", err)
				}
				synctest.Wait()
				s.Close()
				time.Sleep(time.Minute) // the program ends
				if c, told := <-cancelled; told == tt.answer ||
					told && !strings.Contains(string(c.Params), `"requestId":2`) {
					t.Errorf("notifications/cancelled: %v %s", told, c.Params)
				}
			})
		})
	}
}

// TestInputThatIsNotTaken has a program that never reads.
func TestInputThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		s, err := Connect(t.Context(), programs(t, nil, after(func(*program) { <-stop })), Options{StatefulFirst: true})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := s.Call(t.Context(), Request{Method: "x"}); !errors.Is(err, transport.ErrTimeout) {
				t.Errorf("Call: %v", err)
			}
		}
		s.Close()
		close(stop)
	})
}

func TestRequestsOfTheServer(t *testing.T) {
	noLeaks(t)
	answers, ended := make(chan spoken, 100), make(chan struct{})
	release := make(chan struct{})
	given := make(chan error, 1)
	e := &ears{ask: func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
		switch string(params) {
		case `"wait"`:
			<-release
		case `"give up"`:
			<-ctx.Done()
			given <- ctx.Err()
		case `"fail"`:
			return nil, errors.New("a secret")
		case `"refuse"`:
			return nil, &transport.Error{Code: -1, Message: "no", Data: json.RawMessage(`{"a":1}`)}
		}
		return json.RawMessage(`{"method":"` + method + `"}`), nil
	}}
	s := connected(t, programs(t, nil, after(func(p *program) {
		go func() {
			for {
				m, ok := p.next()
				if !ok {
					close(ended)
					return
				}
				answers <- m
			}
		}()
		p.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		p.say(`{"jsonrpc":"2.0","id":9007199254740993,"method":"roots/list"}`)
		p.say(`{"jsonrpc":"2.0","id":"u","method":"tools/list"}`)
		p.say(`{"jsonrpc":"2.0","id":"f","method":"sampling/createMessage","params":"fail"}`)
		p.say(`{"jsonrpc":"2.0","id":"r","method":"sampling/createMessage","params":"refuse"}`)
		p.say(`{"jsonrpc":"2.0","id":null,"method":"ping"}`)
		p.say(`{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`)
		p.say(`{"jsonrpc":"2.0","id":"g","method":"elicitation/create","params":"give up"}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"g"}}`)
		time.Sleep(300 * time.Millisecond)
		for i := range maxServerRequests + 1 {
			p.say(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":"wait"}`, i)
		}
		p.say(`{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":"wait"}`)
		<-ended
	})), Options{Handler: e})
	want := map[string]string{"\"p\"": `{}`, "9007199254740993": `{"method":"roots/list"}`,
		"\"u\"": "unknown method", "\"f\"": "could not be answered", "\"r\"": `no{"a":1}`,
		"16": "16 requests are in flight", "0": "this id is in flight"}
	for len(want) > 0 {
		m := <-answers
		got := string(m.Result)
		if m.Error != nil {
			got = m.Error.Message + string(m.Error.Data)
		}
		if w, ok := want[string(m.ID)]; !ok || !strings.Contains(got, w) {
			t.Errorf("the answer to %s is %s, want %q", m.ID, got, w)
		}
		delete(want, string(m.ID))
	}
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up: %v", err)
	}
	close(release)
	s.Close()
}

func TestAnnouncementsInWireOrder(t *testing.T) {
	noLeaks(t)
	e := &ears{}
	s := connected(t, programs(t, nil, after(func(p *program) {
		for i := range 1000 {
			p.say(`{"jsonrpc":"2.0","method":"notifications/message","params":%d}`, i)
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":7}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/progress"}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}`)
		serve(p)
	})), Options{Handler: e})
	if _, err := s.Call(t.Context(), Request{Method: "x"}); err != nil {
		t.Fatal(err)
	}
	all := e.all()
	if len(all) != 1000 || !slices.IsSortedFunc(all, func(a, b string) int { return len(a) - len(b) }) ||
		all[999] != "notifications/message999" {
		t.Errorf("%d announcements", len(all))
	}
}

// TestWhatIsSent looks at the requests themselves.
func TestWhatIsSent(t *testing.T) {
	noLeaks(t)
	r := Request{Method: "tools/call",
		Params: rawjson.Object{"name": rawjson.Quote("a<b"), "arguments": json.RawMessage(`{"n":12345678901234567890}`),
			"_meta": rawjson.Quote("no")},
		Meta:         rawjson.Object{"x": json.RawMessage(`[1]`), metaProgressToken: rawjson.Quote("theirs")},
		Capabilities: json.RawMessage(`{"roots":{}}`)}
	for _, tt := range []struct {
		run  func(*program) bool
		want string
	}{
		{(*program).greet,
			`{"_meta":{"progressToken":ID,"x":[1]},"arguments":{"n":12345678901234567890},"name":"a<b"}`},
		{(*program).greetNewer,
			`{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"me","version":"3"},` +
				`"io.modelcontextprotocol/logLevel":"debug","io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":ID,"x":[1]},"arguments":{"n":12345678901234567890},"name":"a<b"}`},
	} {
		got := make(chan spoken, 1)
		s := connected(t, programs(t, nil, func(p *program) {
			tt.run(p)
			for {
				m, ok := p.next()
				if !ok {
					return
				}
				if m.Method == "tools/call" {
					got <- m
				}
				p.answer(m, "{}")
			}
		}), Options{Name: "me", Version: "3"})
		if err := s.SetLevel(t.Context(), "debug"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Call(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		m := <-got
		if want := strings.ReplaceAll(tt.want, "ID", string(m.ID)); string(m.Params) != want {
			t.Errorf("sent:\n%s\nwant:\n%s", m.Params, want)
		}
		broken := rawjson.Object{"a": json.RawMessage("{")}
		if _, err := s.Call(t.Context(), Request{Method: "x", Params: broken}); err == nil {
			t.Error("parameters that are no JSON were sent")
		}
	}
}

func TestCloseTwice(t *testing.T) {
	noLeaks(t)
	s := connected(t, programs(t, nil, older), Options{})
	done := make(chan error)
	for range 4 {
		go func() { done <- s.Close() }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if !errors.Is(s.Err(), transport.ErrClosed) {
		t.Error(s.Err())
	}
}
