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
func Detect(ctx context.Context, named map[string]string) (Set, error) {
	if err := Check(named); err != nil {
		return Set{}, err
	}
	var said answers
	var asked sync.WaitGroup
	ask := func(wanted bool, question func(context.Context)) {
		if wanted {
			asked.Go(func() { question(ctx) })
		}
	}
	ask(named == nil, said.askNPM)
	ask(named == nil || named["pypi"] != "", said.askPip)
	ask(named == nil || named["go"] != "", said.askGo)
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return Set{}, err
	}
	b := &builder{hosts: map[Host]bool{}}
	b.npm(said.npm, named)
	b.pypi(said.pip, named)
	b.golang(said.golang, named)
	for _, err := range []error{said.npmErr, said.pipErr, said.goErr} {
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			b.notef("%v", err)
		}
	}
	return b.done(), nil
}

// answers are the settings of the tools. The queries run at the same time: each sets fields
// of its own.
type answers struct {
	npm    npmAnswer
	npmErr error
	pip    pipAnswer
	pipErr error
	golang map[string]string
	goErr  error
}

// pipAnswer is what ask_pip.py prints.
type pipAnswer struct {
	Default string            // the index that pip uses without settings
	Files   string            // the host that serves the files of that index
	Config  map[string]string // "global.index-url", ":env:.index-url" …
}

// npmAnswer is what "npm config list" prints.
type npmAnswer struct {
	Default string            // the registry that npm uses without settings
	Config  map[string]string // "registry" and "@scope:registry"
}

func (a *answers) askNPM(ctx context.Context) {
	// npm must not look for a newer version of itself.
	env := []string{"NO_UPDATE_NOTIFIER=1", "npm_config_update_notifier=false", "COREPACK_ENABLE_NETWORK=0"}
	// With --json, npm would leave out each URL that has a password.
	out, err := run(ctx, env, "npm", "config", "list", "--long")
	if err == nil {
		if a.npm = readNPM(string(out)); a.npm.Config["registry"] == "" {
			err = errAnswer
		}
	}
	a.npmErr = failed("npm", err)
}

// npmLine matches a setting. A semicolon stands before a setting that another one overrides.
var npmLine = regexp.MustCompile(`^(; )?((?:@[a-z0-9~][a-z0-9._~-]{0,213}:)?registry) = ("(?:[^"\\]|\\.)*")`)

func readNPM(list string) npmAnswer {
	a := npmAnswer{Config: map[string]string{}}
	for line := range strings.Lines(list) {
		m := npmLine.FindStringSubmatch(line)
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

func (a *answers) askPip(ctx context.Context) {
	env := []string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PYTHONDONTWRITEBYTECODE=1"}
	out, err := run(ctx, env, "python3", "-c", pipScript)
	a.pipErr = decode("python3", out, err, &a.pip)
	if a.pip.Default == "" {
		a.askUV(ctx)
	}
}

var uvDefault = regexp.MustCompile(`by\s+default:\s+<(https?://[^>\s]+)>`)

// askUV reads the default index from uv's help text, on a host that has uv but no pip.
func (a *answers) askUV(ctx context.Context) {
	out, err := run(ctx, []string{"NO_COLOR=1"}, "uv", "pip", "install", "--help")
	if m := uvDefault.FindSubmatch(out); err == nil && m != nil {
		a.pip.Default = string(m[1])
	}
}

// goNames are the variables of Go that say which modules are fetched directly, or not
// verified.
var goNames = []string{"GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GONOSUMCHECK", "GOINSECURE"}

func (a *answers) askGo(ctx context.Context) {
	// Go must not download another toolchain.
	out, err := run(ctx, []string{"GOTOOLCHAIN=local"}, "go",
		append([]string{"env", "-json", "GOPROXY", "GOSUMDB"}, goNames...)...)
	a.goErr = decode("go", out, err, &a.golang)
}

var errAnswer = errors.New("its answer is not understood")

func decode(tool string, out []byte, err error, into any) error {
	if err == nil && json.Unmarshal(out, into) != nil {
		err = errAnswer
	}
	return failed(tool, err)
}

func failed(tool string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s was not asked for its registries: %w", tool, err)
}

func (b *builder) npm(npm npmAnswer, named map[string]string) {
	if named != nil {
		b.NPM = b.take("npm", named["npm"])
		b.NPMMirror = b.NPM != ""
		return
	}
	for _, key := range slices.Sorted(maps.Keys(npm.Config)) {
		u := b.take("npm's "+key, npm.Config[key])
		scope, _, ok := strings.Cut(key, ":")
		switch {
		case !ok:
			b.NPM = u
			b.NPMMirror = u != "" && npm.Config[key] != npm.Default
		case u != "":
			if b.Scopes == nil {
				b.Scopes = map[string]string{}
			}
			b.Scopes[scope] = u
		}
	}
}

func (b *builder) pypi(pip pipAnswer, named map[string]string) {
	switch u, ok := named["pypi"]; {
	case ok:
		b.PyPI = b.take("pypi", u)
		if strings.HasPrefix(b.PyPI, "http:") { // pip refuses plain HTTP to other hosts
			a, _ := clean(b.PyPI)
			b.PyPITrusted = []string{bracketed(a.host.Name)}
		}
	case named == nil:
		b.pip(pip)
	}
	b.files(pip)
}

// pip sets the indexes from pip's settings. The environment overrides the files, and in
// these the section of the command overrides the global section.
func (b *builder) pip(pip pipAnswer) {
	get := func(key string) string {
		for _, section := range []string{":env:.", "install.", "global."} {
			if v := pip.Config[section+key]; v != "" {
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
		index = pip.Default
	}
	b.PyPI = b.take("pip's index-url", index)
	for _, v := range strings.Fields(get("extra-index-url")) {
		if u := b.take("pip's extra-index-url", v); u != "" {
			b.PyPIExtra = append(b.PyPIExtra, u)
		}
	}
	for _, v := range strings.Fields(get("trusted-host")) {
		if _, err := host(v, 443); errors.Is(err, errLoopback) {
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

// files adds the host that serves the files of pip's default index, if that index is
// used. Where a mirror has its files is not known.
func (b *builder) files(pip pipAnswer) {
	index, err := clean(pip.Default)
	if err != nil || !b.hosts[index.host] {
		return
	}
	if h, err := host(pip.Files, 443); pip.Files != "" && err == nil {
		b.hosts[h] = true
		return
	}
	b.notef("pip does not say which host has its index's files: allow it by name")
}

func goSeparator(r rune) bool { return r == ',' || r == '|' }

func goWord(s string) bool { return s == "direct" || s == "off" }

func (b *builder) golang(env, named map[string]string) {
	proxy, ok := named["go"]
	if !ok && named != nil {
		return
	}
	if !ok {
		proxy = env["GOPROXY"]
	}
	b.Go = b.goProxy(proxy)
	b.goSum(env["GOSUMDB"])
	for _, name := range goNames {
		if v := env[name]; goPatterns.MatchString(v) {
			if b.GoEnv == nil {
				b.GoEnv = map[string]string{}
			}
			b.GoEnv[name] = v
		} else if v != "" {
			b.notef("%s is not taken: it is not a list of patterns", name)
		}
	}
}

// goPatterns matches a list of module path patterns.
var goPatterns = regexp.MustCompile(`^[A-Za-z0-9*?\[\]^!~._/,-]+$`)

// goProxy returns a GOPROXY list without the invalid entries. Order and separators stay.
func (b *builder) goProxy(list string) string {
	var kept strings.Builder
	separator := ""
	for list != "" {
		entry, next := list, ""
		if i := strings.IndexFunc(list, goSeparator); i >= 0 {
			entry, next, list = list[:i], list[i:i+1], list[i+1:]
		} else {
			list = ""
		}
		entry = strings.TrimSpace(entry)
		if !goWord(entry) {
			entry = b.take("GOPROXY", entry)
		}
		if entry != "" {
			if kept.Len() > 0 {
				kept.WriteString(separator)
			}
			kept.WriteString(entry)
			separator = next
		}
	}
	return kept.String()
}

// sumKey matches the name of a checksum database, alone or with its key.
var sumKey = regexp.MustCompile(`^([A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._/-]+)?)(\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+)?$`)

// goSum sets GoSum from GOSUMDB: "off", or a name with or without a key and, if the name
// is not the host, a URL.
func (b *builder) goSum(v string) {
	words := strings.Fields(v)
	if len(words) == 0 {
		return
	}
	if v == "off" {
		b.GoSum = v
		return
	}
	m := sumKey.FindStringSubmatch(words[0])
	if m == nil || len(words) > 2 {
		b.notef("GOSUMDB is not taken: it is not understood")
		return
	}
	at := "https://" + m[1]
	if len(words) == 2 {
		at = words[1]
	}
	u := b.take("GOSUMDB", at)
	if u == "" {
		return
	}
	b.GoSum = words[0]
	if len(words) == 2 {
		b.GoSum += " " + u
	}
}
