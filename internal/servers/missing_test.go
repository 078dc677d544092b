package servers

import (
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

// A tool that a server of the caller's has, had, or may have when it runs is not
// unknown: the answer says what happened, and what helps.
func TestMissing(t *testing.T) {
	tools := []catalog.Definition{{Exposed: "ext_aaaaaa_t", Remote: "t", Raw: []byte(`{}`),
		HeldBecause: "its definition has changed since it was approved"}}
	known := catalog.Catalog{Loaded: true, Tools: tools,
		Names: map[string]string{"tool/t": "ext_aaaaaa_t", "tool/gone": "ext_aaaaaa_gone",
			"prompt/p": "ext_aaaaaa_p"},
		Omissions: []string{`tool "far away" is left out: its schema refers to something else`, `prompts/list: no`}}
	stock := "stock"
	const name = "ext_aaaaaa_t"
	for what, tt := range map[string]struct {
		name   string
		change func(*server)
		kind   fault.Kind
		want   []string
	}{
		"held back": {name, func(*server) {}, fault.Forbidden,
			[]string{"held back", "changed since it was approved", "`sandlot mcp approve x`",
				"`sandlot mcp inspect x`"}},
		"disconnected": {name, func(s *server) { s.State, s.rec.Off = state.Disabled, true }, fault.Connection,
			[]string{"is disconnected", "restart_external_mcp", "`sandlot mcp restart x`"}},
		"held back, and given up": {name, func(s *server) { s.State, s.Why = state.Failed, "it ended" },
			fault.Connection,
			[]string{"it ended", "restart_external_mcp"}},
		"held back, without values": {name, func(s *server) {
			s.Values, s.rec.EnvKeys = spec.Values{},
				[]string{"KEY"}
		}, fault.Connection,
			[]string{"give KEY", "`sandlot mcp restart x --env KEY`"}},
		"disabled by the operator": {name, func(s *server) {
			s.Configured, s.Settings.Disabled, s.State = true, true,
				state.Disabled
		}, fault.Connection, []string{"mcp.x.disabled"}},
		"not offered any more": {"ext_aaaaaa_gone", func(*server) {}, fault.NotFound,
			[]string{`had a tool "gone"`, "list_external_mcp"}},
		"left out by the settings": {"ext_aaaaaa_gone",
			func(s *server) { s.Settings.DisabledTools = []string{"gone"} }, fault.NotFound,
			[]string{"the operator's settings leave out"}},
		"left out by us": {"ext_aaaaaa_far_away", func(*server) {}, fault.NotFound,
			[]string{"its schema refers to something else", "`sandlot mcp inspect x`"}},
		"starting": {"ext_aaaaaa_any", func(s *server) {
			s.State, s.rec.Catalog = state.Starting,
				catalog.Catalog{}
		}, fault.Connection, []string{"is starting", "list_external_mcp"}},
		"failing": {"stock_any", func(s *server) {
			s.State, s.Why = state.Backoff, "it ended with exit code 7"
			s.rec.Catalog, s.Settings.Prefix = catalog.Catalog{}, &stock
		}, fault.Connection, []string{"exit code 7", "external_mcp_logs"}},
		"a log-in is needed": {"ext_aaaaaa_any", func(s *server) {
			s.State, s.AuthURL, s.rec.Catalog = state.NeedsAuth, "http://localhost/oauth/start/1", catalog.Catalog{}
		}, fault.Connection, []string{"log in", "http://localhost/oauth/start/1"}},
	} {
		t.Run(what, func(t *testing.T) {
			servers := newServers(t, &memStore{}, nil)
			s := own(servers, P, "x", "aaaaaa", onhost("x", "nothing", nil))
			s.rec.Catalog = known
			tt.change(s)
			servers.rebuildOf(P.ID)
			if has(servers, P, tt.name) {
				t.Fatal("it is there")
			}
			check := func(err error) {
				t.Helper()
				f := fault.From(err)
				said := fmt.Sprint(f, f.Data().RecoverySuggestions)
				if err == nil || f.Kind != tt.kind || f.Context["tool"] != tt.name ||
					f.Context["connection_id"] != "aaaaaa" {
					t.Errorf("%v %v", err, f.Context)
				}
				for _, w := range tt.want {
					if !strings.Contains(said, w) {
						t.Errorf("%q is not said:\n%s", w, said)
					}
				}
			}
			check(servers.WhyMissing(P, tt.name))
			_, err := callTool(servers, t.Context(), tool.Call{Principal: P, Name: tt.name})
			check(err)
			for _, p := range []auth.Principal{auth.User("mallory", false), auth.Local} {
				if err := servers.WhyMissing(p, tt.name); err != nil {
					t.Errorf("%s is told: %v", p.ID, err)
				}
			}
			for _, other := range []string{"ext_aaaaaa_p", "ext_bbbbbb_t", "execute_kode", ""} {
				if err := servers.WhyMissing(P, other); err != nil && (s.rec.Catalog.Loaded || !strings.HasPrefix(other,
					"ext_aaaaaa_")) {
					t.Errorf("%q: %v", other, err)
				}
			}
		})
	}
}

// The server that is surer of a name speaks for it.
func TestMissingOfTwo(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	short, long := "a", "a_b"
	for i, p := range []*string{&short, &long} {
		s := own(servers, P, *p, fmt.Sprint("aaaaa", i), onhost(*p, "nothing", nil))
		s.Settings.Prefix, s.State, s.Why = p, state.Failed, *p+" fails"
	}
	if err := servers.WhyMissing(P, "a_b_t"); err == nil || !strings.Contains(err.Error(), "a_b fails") {
		t.Error(err)
	}
	get(servers, P, "a").rec.Catalog = catalog.Catalog{Loaded: true, Names: map[string]string{"tool/b_t": "a_b_t"}}
	if err := servers.WhyMissing(P, "a_b_t"); err == nil || !strings.Contains(err.Error(), "a fails") {
		t.Error(err)
	}
}

// What the operator has disabled no user starts.
func TestDisabledByTheOperator(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	c := onhost("x", script(t, pyLoop), nil)
	c.Disabled = true
	servers.SetConfigured([]spec.Configured{c})
	_, err := servers.Restart(t.Context(), P, "x", nil, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "mcp.x.disabled") || servers.List(P)[0].State != state.Disabled {
		t.Errorf("%v, %+v", err, servers.List(P))
	}
}
