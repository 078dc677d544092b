package pkgregistry

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Detect returns where packages come from. With a nil configured, it queries the host's
// npm, pip and Go, at the same time and each for at most 20 seconds, as the user that
// runs the server. A query that fails becomes a note. Otherwise Detect uses only the
// registries in configured, and queries tools only for settings that go with them (see
// Check for what configured may have). It returns the error of Check or of ctx.
func Detect(ctx context.Context, configured map[string]string) (Set, error) {
	if err := Check(configured); err != nil {
		return Set{}, err
	}
	var settings toolSettings
	var queries sync.WaitGroup
	query := func(needed bool, do func(context.Context)) {
		if needed {
			queries.Go(func() { do(ctx) })
		}
	}
	query(configured == nil, settings.queryNPM)
	query(configured == nil || configured["pypi"] != "", settings.queryPip)
	query(configured == nil || configured["go"] != "", settings.queryGo)
	queries.Wait()
	if err := ctx.Err(); err != nil {
		return Set{}, err
	}
	b := &builder{hosts: map[Host]bool{}}
	b.setNPM(settings.npm, configured)
	b.setPyPI(settings.pip, configured)
	b.setGo(settings.golang, configured)
	b.setApt(theMachine, configured)
	for _, err := range []error{settings.npmErr, settings.pipErr, settings.goErr} {
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			b.notef("%v", err)
		}
	}
	return b.build(), nil
}

// toolSettings are the settings of the tools. The queries run at the same time: each sets fields
// of its own.
type toolSettings struct {
	npm    npmSettings
	npmErr error
	pip    pipSettings
	pipErr error
	golang map[string]string
	goErr  error
}

// pipSettings is what ask_pip.py prints.
type pipSettings struct {
	Default string            // the index that pip uses without settings
	Files   string            // the host that serves the files of that index
	Config  map[string]string // "global.index-url", ":env:.index-url" …
}

// npmSettings is what "npm config list" prints.
type npmSettings struct {
	Default string            // the registry that npm uses without settings
	Config  map[string]string // "registry" and "@scope:registry"
}

func (a *toolSettings) queryNPM(ctx context.Context) {
	// npm must not look for a newer version of itself.
	env := []string{"NO_UPDATE_NOTIFIER=1", "npm_config_update_notifier=false", "COREPACK_ENABLE_NETWORK=0"}
	// With --json, npm would leave out each URL that has a password.
	out, err := run(ctx, env, "npm", "config", "list", "--long")
	if err == nil {
		if a.npm = parseNPMConfig(string(out)); a.npm.Config["registry"] == "" {
			err = errUnreadable
		}
	}
	a.npmErr = queryError("npm", err)
}

// npmLine matches a setting. A semicolon stands before a setting that another one overrides.
var npmLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(; )?((?:@[a-z0-9~][a-z0-9._~-]{0,213}:)?registry) = ("(?:[^"\\]|\\.)*")`)
})

func parseNPMConfig(list string) npmSettings {
	a := npmSettings{Config: map[string]string{}}
	for line := range strings.Lines(list) {
		m := npmLine().FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var v string
		if json.Unmarshal([]byte(m[3]), &v) != nil {
			continue
		}
		if m[2] == "registry" && a.Default == "" { // the defaults are listed first
			a.Default = v
		}
		if m[1] == "" {
			a.Config[m[2]] = v
		}
	}
	return a
}

//go:embed ask_pip.py
var pipScript string

func (a *toolSettings) queryPip(ctx context.Context) {
	env := []string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PYTHONDONTWRITEBYTECODE=1"}
	out, err := run(ctx, env, "python3", "-c", pipScript)
	a.pipErr = decodeJSON("python3", out, err, &a.pip)
	if a.pip.Default == "" {
		a.queryUV(ctx)
	}
}

var uvDefault = regexp.MustCompile(`by\s+default:\s+<(https?://[^>\s]+)>`)

// queryUV reads the default index from uv's help text, on a host that has uv but no pip.
func (a *toolSettings) queryUV(ctx context.Context) {
	out, err := run(ctx, []string{"NO_COLOR=1"}, "uv", "pip", "install", "--help")
	if m := uvDefault.FindSubmatch(out); err == nil && m != nil {
		a.pip.Default = string(m[1])
	}
}

// goEnvNames are the variables of Go that say which modules are fetched directly, or not
// verified.
var goEnvNames = []string{"GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GONOSUMCHECK", "GOINSECURE"}

func (a *toolSettings) queryGo(ctx context.Context) {
	// Go must not download another toolchain.
	out, err := run(ctx, []string{"GOTOOLCHAIN=local"}, "go",
		append([]string{"env", "-json", "GOPROXY", "GOSUMDB"}, goEnvNames...)...)
	a.goErr = decodeJSON("go", out, err, &a.golang)
}

var errUnreadable = errors.New("its answer is not understood")

func decodeJSON(tool string, out []byte, err error, into any) error {
	if err == nil && json.Unmarshal(out, into) != nil {
		err = errUnreadable
	}
	return queryError(tool, err)
}

func queryError(tool string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s was not asked for its registries: %w", tool, err)
}

func (b *builder) setNPM(setNPM npmSettings, configured map[string]string) {
	if configured != nil {
		b.NPM = b.addURL("npm", configured["npm"])
		b.NPMMirror = b.NPM != ""
		return
	}
	for _, key := range slices.Sorted(maps.Keys(setNPM.Config)) {
		u := b.addURL("npm's "+key, setNPM.Config[key])
		scope, _, ok := strings.Cut(key, ":")
		switch {
		case !ok:
			b.NPM = u
			b.NPMMirror = u != "" && setNPM.Config[key] != setNPM.Default
		case u != "":
			if b.Scopes == nil {
				b.Scopes = map[string]string{}
			}
			b.Scopes[scope] = u
		}
	}
}

func (b *builder) setPyPI(pip pipSettings, configured map[string]string) {
	switch u, ok := configured["pypi"]; {
	case ok:
		b.PyPI = b.addURL("pypi", u)
		if strings.HasPrefix(b.PyPI, "http:") { // pip refuses plain HTTP to other hosts
			a, _ := parseAddress(b.PyPI)
			b.PyPITrusted = []string{bracketed(a.host.Name)}
		}
	case configured == nil:
		b.setPip(pip)
	}
	b.addFilesHost(pip)
}

// setPip sets the indexes from pip's settings. The environment overrides the files, and in
// these the section of the command overrides the global section.
func (b *builder) setPip(setPip pipSettings) {
	get := func(key string) string {
		for _, section := range []string{":env:.", "install.", "global."} {
			if v := setPip.Config[section+key]; v != "" {
				return v
			}
		}
		return ""
	}
	switch strings.ToLower(get("no-index")) {
	case "1", "true", "yes", "on", "y", "t":
		b.notef("pip is told to use no index")
		return
	}
	index := get("index-url")
	if index == "" {
		index = setPip.Default
	}
	b.PyPI = b.addURL("pip's index-url", index)
	for _, v := range strings.Fields(get("extra-index-url")) {
		if u := b.addURL("pip's extra-index-url", v); u != "" {
			b.PyPIExtra = append(b.PyPIExtra, u)
		}
	}
	for _, v := range strings.Fields(get("trusted-host")) {
		if _, err := parseHost(v, 443); errors.Is(err, errLoopback) {
			continue
		} else if err != nil {
			b.notef("pip's trusted-host is not taken: %v", err)
			continue
		}
		b.PyPITrusted = append(b.PyPITrusted, strings.ToLower(v))
	}
}

func bracketed(name string) string {
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}

// addFilesHost adds the host that serves the files of pip's default index, if that index is
// used. Where a mirror has its files is not known.
func (b *builder) addFilesHost(pip pipSettings) {
	index, err := parseAddress(pip.Default)
	if err != nil || !b.hosts[index.host] {
		return
	}
	if h, err := parseHost(pip.Files, 443); pip.Files != "" && err == nil {
		b.hosts[h] = true
		return
	}
	b.notef("pip does not say which host has its index's files: allow it by name")
}

func isGoSeparator(r rune) bool { return r == ',' || r == '|' }

func isGoKeyword(s string) bool { return s == "direct" || s == "off" }

func (b *builder) setGo(env, configured map[string]string) {
	proxy, ok := configured["go"]
	if !ok && configured != nil {
		return
	}
	if !ok {
		proxy = env["GOPROXY"]
	}
	b.Go = b.filterGoProxy(proxy)
	b.setGoSum(env["GOSUMDB"])
	for _, name := range goEnvNames {
		if v := env[name]; goPatternList.MatchString(v) {
			if b.GoEnv == nil {
				b.GoEnv = map[string]string{}
			}
			b.GoEnv[name] = v
		} else if v != "" {
			b.notef("%s is not taken: it is not a list of patterns", name)
		}
	}
}

// goPatternList matches a list of module path patterns.
var goPatternList = regexp.MustCompile(`^[A-Za-z0-9*?\[\]^!~._/,-]+$`)

// filterGoProxy returns a GOPROXY list without the invalid entries. Order and separators stay.
func (b *builder) filterGoProxy(list string) string {
	var filtered strings.Builder
	separator := ""
	for list != "" {
		entry, next := list, ""
		if i := strings.IndexFunc(list, isGoSeparator); i >= 0 {
			entry, next, list = list[:i], list[i:i+1], list[i+1:]
		} else {
			list = ""
		}
		entry = strings.TrimSpace(entry)
		if !isGoKeyword(entry) {
			entry = b.addURL("GOPROXY", entry)
		}
		if entry != "" {
			if filtered.Len() > 0 {
				filtered.WriteString(separator)
			}
			filtered.WriteString(entry)
			separator = next
		}
	}
	return filtered.String()
}

// sumKey matches the name of a checksum database, alone or with its key.
var sumKey = regexp.MustCompile(`^([A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._/-]+)?)(\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+)?$`)

// setGoSum sets GoSum from GOSUMDB: "off", or a name with or without a key and, if the name
// is not the host, a URL.
func (b *builder) setGoSum(v string) {
	words := strings.Fields(v)
	if len(words) == 0 {
		return
	}
	if v == "off" {
		b.GoSumDB = v
		return
	}
	m := sumKey.FindStringSubmatch(words[0])
	if m == nil || len(words) > 2 {
		b.notef("GOSUMDB is not taken: it is not understood")
		return
	}
	sumURL := "https://" + m[1]
	if len(words) == 2 {
		sumURL = words[1]
	}
	u := b.addURL("GOSUMDB", sumURL)
	if u == "" {
		return
	}
	b.GoSumDB = words[0]
	if len(words) == 2 {
		b.GoSumDB += " " + u
	}
}
