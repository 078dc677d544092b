package mcpclient

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/revision"
)

// serve answers each call with its own name until it is told to end.
func serve(p *program) {
	for {
		m, ok := p.next()
		if !ok {
			return
		}
		if m.ID != nil && m.Method != "" {
			p.answer(m, `{"method":"`+m.Method+`"}`)
		}
	}
}

func ignore(p *program) {
	for {
		if _, ok := p.next(); !ok {
			return
		}
	}
}

func older(p *program) {
	if p.greet() {
		serve(p)
	}
}

func newer(p *program) {
	if p.greetNewer() {
		serve(p)
	}
}

func dies(p *program) { p.next() }

// delayed is a program that needs a while to start. What it is sent meanwhile waits.
func delayed(d time.Duration, run func(*program)) func(*program) {
	return func(p *program) {
		time.Sleep(d)
		run(p)
	}
}

func TestEras(t *testing.T) {
	tests := []struct {
		name    string
		older   bool
		run     []func(*program)
		version string
		problem string
	}{
		{"newer", false, []func(*program){newer}, revision.Stateless, ""},
		{"refused", false, []func(*program){older}, revision.Stateful, ""},
		{"ignored", false, []func(*program){func(p *program) {
			p.next()
			older(p)
		}}, revision.Stateful, ""},
		{"slow", false, []func(*program){delayed(14*time.Second, older)}, revision.Stateful, ""},
		{"slow, newer", false, []func(*program){delayed(14*time.Second, newer)}, revision.Stateless, ""},
		{"slow, newer alone", false, []func(*program){delayed(14*time.Second, func(p *program) {
			p.greetNewer()
			m, _ := p.next() // initialize, unless the answer before came before it was sent
			if m.Method == "initialize" {
				p.refuse(m, -32601, "unknown method")
			} else {
				p.answer(m, `{"method":"`+m.Method+`"}`)
			}
			serve(p)
		})}, revision.Stateless, ""},
		{"slow, older first", true, []func(*program){delayed(14*time.Second, older)}, revision.Stateful, ""},
		{"slow to initialize", false, []func(*program){func(p *program) {
			m, _ := p.next()
			p.refuse(m, -32601, "unknown method")
			delayed(14*time.Second, older)(p)
		}}, revision.Stateful, ""},
		{"slow, and dies of the question", false, []func(*program){delayed(10*time.Second, dies), older}, revision.Stateful,
			""},
		{"dies of the question", false, []func(*program){dies, older}, revision.Stateful, ""},
		{"confused by the question", false, []func(*program){func(p *program) {
			m, _ := p.next()
			p.refuse(m, -32600, "not initialized")
			ignore(p)
		}, older}, revision.Stateful, ""},
		{"older first", true, []func(*program){older}, revision.Stateful, ""},
		{"newer alone, older first", true, []func(*program){func(p *program) {
			m, _ := p.next()
			p.refuse(m, -32601, "unknown method")
			newer(p)
		}}, revision.Stateless, ""},
		{"dies of initialize", true, []func(*program){dies, newer}, revision.Stateless, ""},
		{"asks to be asked again", false, []func(*program){func(p *program) {
			m, _ := p.next()
			p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}}`, m.ID)
			newer(p)
		}}, revision.Stateless, ""},
		{"an older revision", false, []func(*program){func(p *program) {
			m, _ := p.next()
			p.refuse(m, -32601, "unknown method")
			m, _ = p.next()
			p.answer(m, `{"protocolVersion":"2024-11-05","capabilities":{}}`)
			serve(p)
		}}, "2024-11-05", ""},
		{"speaks something else", false, []func(*program){func(p *program) {
			m, _ := p.next()
			p.answer(m, `{"supportedVersions":["2031-01-01"]}`)
			m, _ = p.next()
			p.answer(m, `{"protocolVersion":"1.0","capabilities":{}}`)
			serve(p)
		}}, "", `revision "1.0"`},
		{"too slow", false, []func(*program){delayed(16*time.Second, older), older}, "", "not ready within 15s"},
		{"silent for ever", false, []func(*program){ignore, older}, "", "not ready within 15s"},
		{"dies twice", false, []func(*program){dies, dies}, "", "it ended its output"},
		{"does not start again", false, []func(*program){dies}, "", "no program is left"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := Connect(t.Context(), programs(t, nil, tt.run...),
					Options{Name: "test", Version: "1", StatefulFirst: tt.older})
				if tt.problem != "" {
					if err == nil || !strings.Contains(err.Error(), tt.problem) {
						t.Fatalf("Connect: %v, want an error with %q", err, tt.problem)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if s.Version() != tt.version {
					t.Errorf("revision %s, want %s", s.Version(), tt.version)
				}
				got, err := s.Call(t.Context(), Request{Method: "tools/list"})
				if err != nil || string(got) != `{"method":"tools/list"}` {
					t.Errorf("Call: %s, %v", got, err)
				}
			})
		})
	}
}

func TestConnectTellsOfTheServer(t *testing.T) {
	noLeaks(t)
	s := connected(t, programs(t, nil, older), Options{})
	if string(s.Info()) != `{"name":"peer","version":"1"}` || s.Instructions() != "Be kind." {
		t.Errorf("%s, %q", s.Info(), s.Instructions())
	}
	if want := (Capabilities{Tools: true, ToolsListChanged: true, Resources: true, Subscribe: true,
		Logging: true}); s.Capabilities() != want {
		t.Errorf("%+v, want %+v", s.Capabilities(), want)
	}
	s = connected(t, programs(t, nil, newer), Options{})
	if string(s.Info()) != `{"name":"peer","version":"2"}` {
		t.Errorf("%s", s.Info())
	}
}

func TestConnectIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := Connect(t.Context(), programs(t, nil, ignore, ignore), Options{HandshakeTimeout: 6 * time.Second})
		if !errors.Is(err, transport.ErrTimeout) {
			t.Errorf("Connect: %v", err)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
