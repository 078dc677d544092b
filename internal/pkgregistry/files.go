package pkgregistry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Files returns the config files of a sandbox, by path without a leading slash. Each has
// the lowest precedence that its tool knows, so that the settings of a user or project
// and environment variables override it.
func (s Set) Files() map[string]string {
	files := map[string]string{}
	if s.PyPI != "" || len(s.PyPIExtra) > 0 {
		files["etc/pip.conf"] = s.pipConf()
		files["etc/uv/uv.toml"] = s.uvTOML()
	}
	if s.NPM != "" || len(s.Scopes) > 0 {
		files["etc/npmrc"] = s.npmrc()
		files[".yarnrc.yml"] = s.yarnYML()
	}
	if s.NPM != "" {
		files["etc/yarnrc"] = fmt.Sprintf("registry %q\n", s.NPM) // Yarn 1
	}
	return files
}

// Env returns the environment variables for tools that read no config file for all
// users.
func (s Set) Env() map[string]string {
	env := maps.Clone(s.GoEnv)
	if env == nil {
		env = map[string]string{}
	}
	if s.Go != "" {
		env["GOPROXY"] = s.Go
	}
	if s.GoSumDB != "" {
		env["GOSUMDB"] = s.GoSumDB
	}
	if s.NPM != "" || len(s.Scopes) > 0 {
		// The default path depends on where npm is installed.
		env["npm_config_globalconfig"] = "/etc/npmrc"
	}
	if s.NPMMirror || len(s.Scopes) > 0 {
		// Since version 11, pnpm reads no config file for all users. It reads this one
		// instead of ~/.npmrc, so the variable is set only where it is needed.
		env["pnpm_config_npmrc_auth_file"] = "/etc/npmrc"
	}
	return env
}

func (s Set) pipConf() string {
	var f strings.Builder
	f.WriteString("[global]\n")
	if s.PyPI != "" {
		fmt.Fprintf(&f, "index-url = %s\n", s.PyPI)
	}
	lines := func(key string, values []string) {
		if len(values) > 0 {
			fmt.Fprintf(&f, "%s =\n    %s\n", key, strings.Join(values, "\n    "))
		}
	}
	lines("extra-index-url", s.PyPIExtra)
	lines("trusted-host", s.PyPITrusted)
	return f.String()
}

func (s Set) uvTOML() string {
	var f strings.Builder
	if len(s.PyPITrusted) > 0 {
		quoted := make([]string, len(s.PyPITrusted))
		for i, h := range s.PyPITrusted {
			quoted[i] = fmt.Sprintf("%q", h)
		}
		fmt.Fprintf(&f, "allow-insecure-host = [%s]\n", strings.Join(quoted, ", "))
	}
	for _, u := range s.PyPIExtra {
		fmt.Fprintf(&f, "[[index]]\nurl = %q\n", u)
	}
	if s.PyPI != "" {
		fmt.Fprintf(&f, "[[index]]\nurl = %q\ndefault = true\n", s.PyPI)
	}
	return f.String()
}

func (s Set) npmrc() string {
	var f strings.Builder
	if s.NPM != "" {
		fmt.Fprintf(&f, "registry=%s\n", s.NPM)
	}
	for _, scope := range slices.Sorted(maps.Keys(s.Scopes)) {
		fmt.Fprintf(&f, "%s:registry=%s\n", scope, s.Scopes[scope])
	}
	return f.String()
}

// yarnYML returns the config file of Yarn 2 and later, which reads none in /etc, but one
// in each folder above the project; that of the root has the lowest precedence. Yarn
// refuses plain HTTP to hosts that are not listed.
func (s Set) yarnYML() string {
	var f strings.Builder
	plainHTTP := map[string]bool{}
	writeServer := func(indent, u string) {
		fmt.Fprintf(&f, "%snpmRegistryServer: %q\n", indent, u)
		if a, err := parseAddress(u); err == nil && strings.HasPrefix(u, "http:") {
			plainHTTP[a.host.Name] = true
		}
	}
	if s.NPM != "" {
		writeServer("", s.NPM)
	}
	if len(s.Scopes) > 0 {
		f.WriteString("npmScopes:\n")
	}
	for _, scope := range slices.Sorted(maps.Keys(s.Scopes)) {
		fmt.Fprintf(&f, "  %q:\n", strings.TrimPrefix(scope, "@"))
		writeServer("    ", s.Scopes[scope])
	}
	if len(plainHTTP) > 0 {
		f.WriteString("unsafeHttpWhitelist:\n")
	}
	for _, h := range slices.Sorted(maps.Keys(plainHTTP)) {
		fmt.Fprintf(&f, "  - %q\n", h)
	}
	return f.String()
}
