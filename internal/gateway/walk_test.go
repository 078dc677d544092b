package gateway

import (
	"context"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/tool"
)

// The second of two equal calls goes through each package once, as docs/ARCHITECTURE.md says ("Two
// walks"): it does not come back to one that it has left.
func TestWalk(t *testing.T) {
	var packages []string
	own := fakeElicitor{call: func(context.Context, tool.Call) (*tool.Result, error) {
		packages = callingPackages()
		return &tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
	}}
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_a", `{"type":"object"}`)},
		call: func(context.Context, tool.Call) (*tool.Result, error) {
			packages = callingPackages()
			return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
		}}
	client := newTestClient(t, newGateway(own, external), "{}")
	for name, want := range map[string][]string{
		"careless": {"gateway", "gateway/fastpath", "hub"},
		"ext_a":    {"gateway", "gateway/fastpath", "gateway/relay", "hub"},
	} {
		client.stateful(callOf("1", name, `{}`))
		if r := client.stateful(callOf("2", name, `{}`)); !r.fast {
			t.Fatalf("%s: the second call was not on the fast path: %s", name, r.text)
		}
		if !slices.Equal(packages, want) {
			t.Errorf("a call of %s goes through %q, want %q", name, packages, want)
		}
	}
}

// callingPackages returns the packages of Sandlot on the stack, the outermost first, without this test.
func callingPackages() []string {
	const root = "sandlot/internal/"
	counters := make([]uintptr, 200)
	frames := runtime.CallersFrames(counters[:runtime.Callers(1, counters)])
	var all []string
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		path, ok := strings.CutPrefix(frame.Function, root)
		if !ok || strings.HasSuffix(frame.File, "_test.go") {
			continue
		}
		last := strings.LastIndex(path, "/") + 1
		name, _, _ := strings.Cut(path[last:], ".")
		all = append(all, path[:last]+name)
	}
	slices.Reverse(all)
	return slices.Compact(all)
}
