package template

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/image"
)

// TestReplaceHost: the template host changes with the machine, and nothing is announced if it does not.
func TestReplaceHost(t *testing.T) {
	of := func(text string) *image.Template {
		return &image.Template{Name: hostName, Files: map[string][]byte{"etc/ld.so.cache": []byte(text)},
			Languages: []image.Language{{Name: "python"}}}
	}
	s := New(slog.New(slog.DiscardHandler), []*image.Template{of("a")}, nil, false)
	changes := 0
	s.OnChange(func() { changes++ })
	first, _ := s.Find(t.Context(), hostName)
	s.ReplaceHost(of("a"))
	if now, _ := s.Find(t.Context(), hostName); now != first || changes != 0 {
		t.Errorf("the same machine: %d changes", changes)
	}
	next := of("b")
	s.ReplaceHost(next)
	if now, exists, err := s.Of(t.Context(), hostName); now != next || !exists || err != nil || changes != 1 {
		t.Errorf("another machine: %+v, %d changes, %v", now, changes, err)
	}
	without := New(slog.New(slog.DiscardHandler), nil, nil, false)
	without.ReplaceHost(next)
	if without.Exists(hostName) {
		t.Error("a server without the template host has one")
	}
}

// TestAskHost: while it is not known whether there is the template host, no sandbox is made of it in advance, and who
// asks for it is told what to do. When the runtime answers, it is there, or others are offered and one stands for it.
func TestAskHost(t *testing.T) {
	host := &image.Template{Name: hostName, Provides: []string{"python", "base"},
		Languages: []image.Language{{Name: "python"}}}
	for _, tt := range []struct {
		can   bool
		first string
		want  string // what sessions get that ask for the host; empty: an error
	}{{true, "python", "host"}, {false, "python", "python"}, {false, "", ""}} {
		s := New(slog.New(slog.DiscardHandler), []*image.Template{host}, []config.Template{{Name: "own", Image: "own"}},
			true)
		changes := 0
		s.OnChange(func() { changes++ })
		var away error = &advised{}
		s.AskHost(tt.first, func(context.Context) (bool, error) { return tt.can, away })
		if ready := s.Ready(); len(ready) != 0 {
			t.Errorf("sandboxes are made of %s", ready[0].Name)
		}
		if offered := s.Offered(); len(offered) != 2 || offered[0].Name != hostName {
			t.Errorf("offered: %d", len(offered))
		}
		for _, name := range []string{hostName, "base"} {
			_, err := s.Find(t.Context(), name)
			if !fault.Is(err, fault.SandboxCreation) || !strings.Contains(err.Error(), "start it, please") {
				t.Errorf("while the runtime is away, %s: %v", name, err)
			}
		}
		away = errors.New("something else")
		if _, err := s.Find(t.Context(), hostName); err == nil || strings.Contains(err.Error(), "something else") {
			t.Errorf("the user is told %v", err)
		}
		if away = nil; changes != 0 {
			t.Error("something has changed before the answer")
		}
		if tt.can {
			if got, err := s.Find(t.Context(), hostName); err != nil || got != host {
				t.Errorf("%+v, %v", got, err)
			}
		} else if err := s.SettleHost(t.Context()); err != nil {
			t.Fatal(err)
		}
		away = errors.New("asked again")
		if err := s.SettleHost(t.Context()); err != nil || changes != 1 || s.Exists(hostName) != tt.can ||
			(len(s.Ready()) == 1) != tt.can {
			t.Errorf("%+v: %v, %d changes", tt, err, changes)
		}
		e, err := s.choose(hostName)
		if (err != nil) != (tt.want == "") || err == nil && e.definition.Name != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
		if e, err = s.choose("node"); (err == nil) == tt.can {
			t.Errorf("%+v: node: %+v, %v", tt, e, err)
		}
	}
}
