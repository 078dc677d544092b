package servers

import (
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// A fault that a third-party server causes says what helps with that server.
func TestAdvice(t *testing.T) {
	dies := onhost("x", script(t, `
while True:
    m=readmsg()
    if m.get("method")=="tools/call": sys.exit(3)
    if base(m): continue
`), nil)
	ends := onhost("x", script(t, `sys.exit(7)`), nil)
	inSandbox := func(c spec.Configured) spec.Configured { c.Where = spec.InSandbox; return c }
	for name, tt := range map[string]struct {
		make func(servers *Servers) *server
		want []string
		not  string
	}{
		"it died": {func(servers *Servers) *server { return own(servers, P, "my server", "aaaaaa", dies) },
			[]string{"external_mcp_logs, or `sandlot mcp logs 'my server'`", "restart_external_mcp",
				"Check its command, args and env"}, "operator"},
		"it was given up": {func(servers *Servers) *server {
			s := own(servers, P, "x", "aaaaaa", ends)
			s.State, s.Why = state.Failed, "it ended"
			return s
		}, []string{"external_mcp_logs", "`sandlot mcp restart x`"}, "operator"},
		"it has no values": {func(servers *Servers) *server {
			s := own(servers, P, "x", "aaaaaa", dies)
			s.Values, s.rec.EnvKeys, s.rec.HeaderKeys = spec.Values{}, []string{"KEY"}, []string{"X-Key"}
			return s
		}, []string{"`sandlot mcp restart x --env KEY --header X-Key`"}, "logs"},
		"it is disconnected": {func(servers *Servers) *server {
			s := own(servers, P, "x", "aaaaaa", dies)
			s.State = state.Disabled
			return s
		}, []string{"`sandlot mcp restart x`"}, "logs"},
		"it is remote": {func(servers *Servers) *server {
			return own(servers, P, "x", "aaaaaa", spec.Configured{Name: "x", Kind: spec.HTTP, URL: "http://192.0.2.1/"})
		}, []string{"Check its url and headers"}, "logs"},
		"it is the operator's, on the machine": {func(servers *Servers) *server {
			s := own(servers, P, "x", "aaaaaa", ends)
			s.Configured = true
			return s
		}, []string{"Ask the operator"}, "logs"},
		"it is the operator's, in the sandbox": {func(servers *Servers) *server {
			s := own(servers, P, "x", "aaaaaa", inSandbox(ends)) // there is no sandbox
			s.Configured = true
			return s
		}, []string{"Ask the operator", "external_mcp_logs"}, "connect it again"},
	} {
		t.Run(name, func(t *testing.T) {
			servers := newServers(t, &memStore{}, nil)
			s := tt.make(servers)
			s.rec.Catalog = catalog.Catalog{Loaded: true,
				Tools: []catalog.Definition{{Exposed: "ext_t", Remote: "t", Raw: []byte(`{}`)}}}
			_, err := s.request(t.Context(), &instance.Request{Method: "tools/call",
				Params: rawjson.Object{"name": rawjson.Quote("t"), "arguments": []byte("{}")}})
			f := fault.From(err)
			advice := strings.Join(f.Data().RecoverySuggestions, "\n")
			if f.Code() != "CONNECTION_ERROR" {
				t.Fatalf("%v", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(advice, w) {
					t.Errorf("%v: %q is not advised:\n%s", err, w, advice)
				}
			}
			if strings.Contains(advice, tt.not) || strings.Contains(advice, "doctor") {
				t.Errorf("%v: advised\n%s", err, advice)
			}
		})
	}
}

// One that did not start when it was connected has no log to look at.
func TestAdviceOfWhatDidNotStart(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	_, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", URL: "http://192.0.2.1/"})
	f := fault.From(err)
	if got := f.Data().RecoverySuggestions; f.Kind != fault.Connection || len(got) != 2 || !strings.Contains(got[1],
		"network.allow") {
		t.Errorf("%v %q", err, got)
	}
}
