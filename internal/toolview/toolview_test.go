package toolview

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
)

var ann, bob = auth.User("ann", false), auth.User("bob", false)

// some are n tools whose definitions have size bytes each.
func some(n, size int) (all []tool.Tool) {
	for i := range n {
		all = append(all, tool.Tool{Name: fmt.Sprintf("t%d", i), Raw: json.RawMessage(strings.Repeat("x", size))})
	}
	return all
}

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{"all": true, "search": true, "code": true, "auto": true, "": true,
		"All": false, "none": false, "search,code": false} {
		if m, err := Parse(text); (err == nil) != ok || ok && string(m) != text {
			t.Errorf("%q: %q %v", text, m, err)
		}
	}
}

// The address counts before the settings, and in them what is said of fewer principals.
func TestMode(t *testing.T) {
	service := auth.User("git", true)
	v := New()
	for _, tt := range []struct {
		settings Settings
		p        auth.Principal
		asked    Mode
		want     Mode
	}{
		{Settings{}, ann, "", All}, // auto, below the limit
		{Settings{Mode: Search}, ann, "", Search},
		{Settings{Mode: Search, Users: Code}, ann, "", Code},
		{Settings{Mode: Search, Users: Code}, service, "", Search},
		{Settings{Users: Code, Services: Search}, service, "", Search},
		{Settings{Users: Code, Principals: map[string]Mode{ann.ID: All}}, ann, "", All},
		{Settings{Users: Code, Principals: map[string]Mode{ann.ID: All}}, bob, "", Code},
		{Settings{Mode: All, Principals: map[string]Mode{ann.ID: All}}, ann, Search, Search},
		{Settings{Mode: Search}, ann, Auto, All},
	} {
		tt.settings.Limit = 10
		v.Set(tt.settings)
		if got := v.Shown(tt.p, tt.asked, some(1, 40)).Mode; got != tt.want {
			t.Errorf("%+v for %s, who asks for %q: %q, want %q", tt.settings, tt.p.ID, tt.asked, got, tt.want)
		}
	}
}

func TestAuto(t *testing.T) {
	v := New()
	v.Set(Settings{Limit: 100})
	few, many := some(4, 100), some(12, 100)
	if s := v.Shown(ann, "", few); s.Mode != All || s.Auto || !s.ListsTool("t0") || !s.ListsAll() ||
		s.Lists(SearchTools) || !s.Lists("execute_code") {
		t.Errorf("at the limit: %+v", s)
	}
	if s := v.Shown(ann, "", many); s.Mode != Search || !s.Auto || s.ListsTool("t0") || s.ListsAll() ||
		!s.Lists(SearchTools) || !s.Lists(CallTool) {
		t.Errorf("beyond it: %+v", s)
	}
	if !v.Used(ann, "t3") || v.Used(ann, "t3") || !v.Used(ann, "gone") || v.Used(ann, "t3") {
		t.Error("what is new")
	}
	before := v.Shown(ann, "", many)
	if !before.ListsTool("t3") || before.ListsTool("t4") || before.ListsTool("gone") {
		t.Errorf("used: %+v", before)
	}
	if v.Shown(bob, "", many).ListsTool("t3") || v.Shown(ann, Search, many).ListsTool("t3") {
		t.Error("another user, or the view search, has it too")
	}
	for i := range 12 {
		v.Used(ann, fmt.Sprintf("t%d", i))
	}
	after := v.Shown(ann, "", many)
	if len(after.recent) != maxRecent || after.ListsTool("t0") || after.ListsTool("t1") || !after.ListsTool("t2") ||
		before.Equal(after) || !after.Equal(v.Shown(ann, "", many)) {
		t.Errorf("the last ones: %+v", after)
	}
	large := some(12, 3000) // two of them have 1,500 tokens
	if s := v.Shown(ann, "", large); len(s.recent) != 2 || !s.ListsTool("t11") || !s.ListsTool("t10") {
		t.Errorf("large ones: %+v", s)
	}
}

// What is known of principals is bounded, and may be asked for while it changes.
func TestUsedIsBounded(t *testing.T) {
	v := New()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range maxPrincipals / 2 {
				v.Used(auth.User(fmt.Sprintf("u%d-%d", i, n), false), "t")
				v.Used(ann, fmt.Sprint("t", n%20))
				v.Shown(ann, "", some(1, 10))
			}
		})
	}
	all.Wait()
	if len(v.recent) > maxPrincipals {
		t.Errorf("%d principals are known", len(v.recent))
	}
}

// Instructions say what the view is, and how code calls tools, in a few words.
func TestInstructions(t *testing.T) {
	for name, s := range map[string]Shown{"": {Mode: All}, "search_tools": {Mode: Code, Connected: true},
		"call_tool": {Mode: Search, Connected: true}, "used last": {Mode: Search, Auto: true, Connected: true}} {
		if text := s.Instructions(); (text == "") != (name == "") || !strings.Contains(text, name) || len(text) > 560 {
			t.Errorf("%+v: %q", s, text)
		}
	}
}
