package install

import (
	"maps"
	"slices"
	"testing"

	"sandlot/internal/servers/spec"
)

// TestVariables: a command of an installation gets what is for its installer. What may run a stranger's code gets no other
// secret, what fetches gets nothing else, and what comes before gets nothing at all.
func TestVariables(t *testing.T) {
	r := Request{Type: "pip", SHA256: "0", ConnectRequest: spec.ConnectRequest{Env: map[string]string{
		"API_KEY": "${secret:KEY}", "PART": "x-${secret:KEY}", "MODE": "fast", "npm_config_registry": "https://r.example",
		"NPM_TOKEN": "${secret:NPM}", "PIP_INDEX_URL": "https://u:${secret:PIP}@r.example", "UV_INDEX_URL": "${secret:PIP}",
		"GIT_ASKPASS": "x", "LD_PRELOAD": "x"}}}
	env := map[string]string{"API_KEY": "key", "PART": "x-key", "MODE": "fast", "npm_config_registry": "https://r.example",
		"NPM_TOKEN": "n", "PIP_INDEX_URL": "https://u:p@r.example", "UV_INDEX_URL": "p", "GIT_ASKPASS": "x", "LD_PRELOAD": "x"}
	i := New(nil, r, "f", 0, env)
	npm := []string{"NPM_TOKEN", "npm_config_registry"}
	literals := []string{"GIT_ASKPASS", "LD_PRELOAD", "MODE"}
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
		{npmPackCommand("f", "x"), npm},
		{cloneCommand("u", "", "r"), []string{"GIT_ASKPASS"}},
		{[]string{"git", "checkout", "--detach", "x"}, []string{"GIT_ASKPASS"}},
		{pipCommand("v", hashedArguments...), []string{"PIP_INDEX_URL"}},
		{uvCommand("v", hashedArguments...), []string{"PIP_INDEX_URL", "UV_INDEX_URL"}},
		{npmInstallCommand("f", "x"), with(npm, literals)},
		{[]string{"npm", "run", "build", "--if-present"}, with(npm, literals)},
		{pipCommand("v", "x"), with([]string{"PIP_INDEX_URL", "npm_config_registry"}, literals)},
		{uvCommand("v", "x"), with([]string{"PIP_INDEX_URL", "UV_INDEX_URL", "npm_config_registry"}, literals)},
	} {
		if got := slices.Sorted(maps.Keys(i.variables(c.argv))); !slices.Equal(got, with(c.want)) {
			t.Errorf("%q gets %q, want %q", c.argv, got, with(c.want))
		}
	}
}
