package pkgregistry

import (
	"maps"
	"slices"
	"strings"
	"text/template"
)

// configFiles are the templates of the config files of a sandbox, by path without a leading slash. Each file has
// the lowest precedence that its tool knows, so that the settings of a user or project and environment variables
// override it.
var configFiles = map[string]string{
	"etc/pip.conf": `{{if or .PyPI .PyPIExtra}}[global]
{{with .PyPI}}index-url = {{.}}
{{end}}{{with .PyPIExtra}}extra-index-url ={{range .}}
    {{.}}{{end}}
{{end}}{{with .PyPITrusted}}trusted-host ={{range .}}
    {{.}}{{end}}
{{end}}{{end}}`,

	"etc/uv/uv.toml": `{{if or .PyPI .PyPIExtra}}{{with .PyPITrusted -}}
allow-insecure-host = [{{range $i, $host := .}}{{if $i}}, {{end}}{{printf "%q" $host}}{{end}}]
{{end}}{{range .PyPIExtra}}[[index]]
url = {{printf "%q" .}}
{{end}}{{with .PyPI}}[[index]]
url = {{printf "%q" .}}
default = true
{{end}}{{end}}`,

	"etc/npmrc": `{{with .NPM}}registry={{.}}
{{end}}{{range $scope, $url := .Scopes}}{{$scope}}:registry={{$url}}
{{end}}`,

	// Yarn 1
	"etc/yarnrc": `{{with .NPM}}registry {{printf "%q" .}}
{{end}}`,

	// Yarn 2 and later reads no file in /etc, but one in each folder above the project.
	".yarnrc.yml": `{{with .NPM}}npmRegistryServer: {{printf "%q" .}}
{{end}}{{with .Scopes}}npmScopes:
{{range $scope, $url := .}}  {{printf "%q" (slice $scope 1)}}:
    npmRegistryServer: {{printf "%q" $url}}
{{end}}{{end}}{{with .PlainHTTP}}unsafeHttpWhitelist:
{{range .}}  - {{printf "%q" .}}
{{end}}{{end}}`,
}

// aptSettings make apt-get update fail that has fetched no list: it ends with 0, and the installation that follows fails
// for another reason than the network.
const aptSettings = `APT::Update::Post-Invoke { "ls /var/lib/apt/lists/ | grep -q -e Release$ -e Packages || { echo 'no list of packages was fetched' >&2; exit 1; }"; };
`

// Files returns the config files of a sandbox, by path without a leading slash.
func (s Set) Files() map[string]string {
	files := map[string]string{}
	if len(s.Hosts) > 0 {
		files["etc/apt/apt.conf.d/95sandlot-lists"] = aptSettings
	}
	for path, text := range configFiles {
		var f strings.Builder
		if err := template.Must(template.New(path).Parse(text)).Execute(&f, s); err != nil {
			panic(err) // a template that does not fit Set
		}
		if f.Len() > 0 {
			files[path] = f.String()
		}
	}
	return files
}

// PlainHTTP returns the hosts of npm's registries without TLS, sorted: Yarn refuses those that are not listed.
func (s Set) PlainHTTP() (hosts []string) {
	for _, u := range append(slices.Collect(maps.Values(s.Scopes)), s.NPM) {
		if a, err := parseAddress(u); err == nil && strings.HasPrefix(u, "http:") {
			hosts = append(hosts, a.host.Name)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
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
