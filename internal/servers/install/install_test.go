package install

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// TestVariables: a command of an installation gets what is for its installer. What may run a stranger's code gets no other
// secret, what fetches gets nothing else but what it needs for the network, and what comes before gets nothing at all. A
// failure names the others.
func TestVariables(t *testing.T) {
	r := Request{Type: "pip", SHA256: "0", ConnectRequest: spec.ConnectRequest{Env: map[string]string{
		"API_KEY": "${secret:KEY}", "PART": "x-${secret:KEY}", "MODE": "fast", "npm_config_registry": "https://r.example",
		"NPM_TOKEN": "${secret:NPM}", "PIP_INDEX_URL": "https://u:${secret:PIP}@r.example", "UV_INDEX_URL": "${secret:PIP}",
		"GIT_ASKPASS": "x", "LD_PRELOAD": "x",
		"HTTPS_PROXY": "http://proxy.example", "no_proxy": "a", "SSL_CERT_FILE": "/c", "REQUESTS_CA_BUNDLE": "/c",
		"NODE_EXTRA_CA_CERTS": "/c", "ALL_PROXY": "http://u:${secret:PROXY}@proxy.example"}}}
	env := map[string]string{"API_KEY": "key", "PART": "x-key", "MODE": "fast", "npm_config_registry": "https://r.example",
		"NPM_TOKEN": "n", "PIP_INDEX_URL": "https://u:p@r.example", "UV_INDEX_URL": "p", "GIT_ASKPASS": "x", "LD_PRELOAD": "x",
		"HTTPS_PROXY": "http://proxy.example", "no_proxy": "a", "SSL_CERT_FILE": "/c", "REQUESTS_CA_BUNDLE": "/c",
		"NODE_EXTRA_CA_CERTS": "/c", "ALL_PROXY": "http://u:p@proxy.example"}
	i := New(nil, r, "f", 0, env)
	npm := []string{"NPM_TOKEN", "npm_config_registry"}
	network := []string{"HTTPS_PROXY", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "no_proxy"}
	literals := slices.Concat([]string{"GIT_ASKPASS", "LD_PRELOAD", "MODE"}, network)
	with := func(lists ...[]string) []string {
		all := slices.Concat(lists...)
		slices.Sort(all)
		return slices.Compact(all)
	}
	for _, c := range []struct {
		argv []string
		want []string
	}{
		{makeVenvCommand("v"), nil},
		{checkFileCommand("0"), nil},
		{npmPackCommand("f", "x"), with(npm, network)},
		{cloneCommand("u", "", "r"), with([]string{"GIT_ASKPASS"}, network)},
		{[]string{"git", "checkout", "--detach", "x"}, with([]string{"GIT_ASKPASS"}, network)},
		{pipCommand("v", hashedArguments...), with([]string{"PIP_INDEX_URL"}, network)},
		{uvCommand("v", hashedArguments...), with([]string{"PIP_INDEX_URL", "UV_INDEX_URL"}, network)},
		{npmInstallCommand("f", "x"), with(npm, literals)},
		{[]string{"npm", "run", "build", "--if-present"}, with(npm, literals)},
		{pipCommand("v", "x"), with([]string{"PIP_INDEX_URL", "npm_config_registry"}, literals)},
		{uvCommand("v", "x"), with([]string{"PIP_INDEX_URL", "UV_INDEX_URL", "npm_config_registry"}, literals)},
	} {
		if got := slices.Sorted(maps.Keys(i.variables(c.argv))); !slices.Equal(got, with(c.want)) {
			t.Errorf("%q gets %q, want %q", c.argv, got, with(c.want))
		}
	}
	want := []string{"ALL_PROXY", "API_KEY", "NPM_TOKEN", "PART", "UV_INDEX_URL"}
	if got := i.withheld(pipCommand("v", "x")); !slices.Equal(got, want) {
		t.Errorf("withheld: %q, want %q", got, want)
	}
	f := fault.From(i.failed(&agent.ExecResult{ExitCode: 1}, pipCommand("v", "x"), want, nil))
	if !strings.Contains(f.Message, "API_KEY, NPM_TOKEN, PART") || strings.Contains(f.Message, "key") {
		t.Errorf("the failure: %s", f.Message)
	}
}
