// Package entry reads the entries of third-party MCP servers in the settings file and in files of MCP clients.
package entry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"sandlot/internal/clientconfig"
	"sandlot/internal/expand"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Entry is one server as a file describes it.
type Entry struct {
	Name   string
	File   string
	format *format
	keys   map[string]any // values: string, []any, map[string]any; nil for null
	err    error          // set if the entry is not a section at all
}

// New returns an entry of the settings file, from the texts, lists and maps of its section. err is the error of
// reading these.
func New(name, file string, section any, err error) Entry {
	e := Entry{Name: name, File: file, format: &ownFormat}
	e.keys, e.err = entryKeys(section, err)
	return e
}

// OfClient returns an entry of a client's file.
func OfClient(name, file string, f *clientconfig.Format, section any) Entry {
	e := Entry{Name: name, File: file, format: clientFormat(f)}
	e.keys, e.err = entryKeys(section, nil)
	return e
}

func entryKeys(tree any, err error) (map[string]any, error) {
	keys, ok := tree.(map[string]any)
	if err == nil && !ok {
		err = errors.New("it must be a section with command or url")
	}
	return keys, err
}

// Settings are what the entries take from the other settings.
type Settings struct {
	Env     map[string]string // the variables to which an entry of the settings file may refer
	Allowed []string          // names of those to which an entry of a client's file may
	// Commands is set if $(…) in an entry of a client's file runs, as it always does in one of the settings file.
	Commands bool
	// Home returns the folder that ~ means for the server.
	Home func(spec.Configured) string
	// Duration reads a duration.
	Duration func(text string) (time.Duration, error)
	// Principal returns the id of a principal by the text in an entry.
	Principal func(text string) (id string, err error)
}

// format is the syntax of the entries in a kind of file.
type format struct {
	// translate returns the values by their keys in sandlot.yaml.
	translate func(keys map[string]any) (translated map[string]any, notes []string, err error)
	expand    func(ctx context.Context, text string, env variables) (string, error)
}

// variables are the environment variables to which an entry may refer.
type variables struct {
	values  map[string]string
	allowed []string // names in mcp_files_env: the only ones for clients' files
	// commands is set if commands of clients' files run.
	commands bool
	folder   string // what $(pwd) stands for; empty: the folder of this process
}

// checkAllowed returns an error if a client's file may not use the variable.
func (v variables) checkAllowed(name string) error {
	if slices.Contains(v.allowed, name) {
		return nil
	}
	return fmt.Errorf("the variable %s is not given to files of MCP clients; "+
		"the operator can list it in mcp_files_env", fault.Clip(name))
}

// ownFormat is the syntax of sandlot.yaml.
var ownFormat = format{
	translate: func(keys map[string]any) (map[string]any, []string, error) {
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(ownKeys, k) {
				return keys, nil, fmt.Errorf("unknown setting %q%s", fault.Clip(k), fault.DidYouMean(k, ownKeys))
			}
		}
		return keys, nil, nil
	},
	expand: func(ctx context.Context, text string, env variables) (string, error) {
		return expand.Text(ctx, text, expand.Options{Env: env.values, Commands: true, Folder: env.folder})
	},
}

// clientFormat returns the syntax of a client's file.
func clientFormat(f *clientconfig.Format) *format {
	return &format{
		translate: f.Translate,
		expand: func(ctx context.Context, text string, env variables) (string, error) {
			return f.Expand(ctx, text, clientconfig.Variables{Values: env.values, Allow: env.checkAllowed,
				Commands: env.commands, Folder: env.folder})
		},
	}
}

// ownKeys are the keys that an entry of sandlot.yaml may have: Crush's, and more.
var ownKeys = append(slices.Clone(clientconfig.Keys), "where", "prefix", "principals", "trust", "user")

// Server returns the server that the entry describes. It does not expand a disabled server's texts, so
// that no command runs for it.
func (e Entry) Server(ctx context.Context, c Settings) (s spec.Configured, notes []string) {
	if e.err != nil {
		return spec.Configured{Invalid: e.err.Error()}, nil
	}
	keys, notes, err := e.format.translate(e.keys)
	r := &entryReader{keys: keys}
	s = r.server(c.Duration)
	s.Principals = r.principals(c.Principal)
	if err = errors.Join(err, r.err); err == nil && !s.Disabled {
		x := &expander{ctx: ctx, env: variables{c.Env, c.Allowed, c.Commands, folderOf(s)}, expandText: e.format.expand}
		err = x.server(&s, c.Home(s))
	}
	if err == nil && !s.Disabled {
		err = checkServer(&s)
	}
	if err != nil {
		// Only the name, who may see the server, and the reason remain.
		s = spec.Configured{Disabled: s.Disabled, Principals: s.Principals, Where: s.Where,
			Invalid: strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if s.Disabled {
		s.Env, s.Headers, s.OAuth, s.URL, s.Command, s.Args = nil, nil, spec.OAuth{}, "", "", nil
	}
	return s, notes
}

// folderOf returns the folder that $(pwd) means for a server: that of its sandbox, and not the server's own, which is
// not there. Empty: the server's own.
func folderOf(s spec.Configured) string {
	if s.Kind == spec.Stdio && s.Where == spec.InSandbox {
		return "/workspace"
	}
	return ""
}

// entryReader reads an entry's keys by type, and stores the first error.
type entryReader struct {
	keys map[string]any
	err  error
}

func (r *entryReader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...))
	}
}

func (r *entryReader) text(key string, allowed ...string) string {
	v, ok := r.keys[key].(string)
	if !ok && r.keys[key] != nil {
		r.fail(key, "it must be a text")
	}
	if v != "" && len(allowed) > 0 && !slices.Contains(allowed, v) {
		r.fail(key, "%q must be one of %s", fault.Clip(v), strings.Join(allowed, ", "))
	}
	return v
}

func (r *entryReader) boolean(key string) bool {
	switch v := r.keys[key].(type) {
	case nil:
	case string:
		if v == "true" || v == "false" {
			return v == "true"
		}
		r.fail(key, "it must be true or false")
	default:
		r.fail(key, "it must be true or false")
	}
	return false
}

func (r *entryReader) list(key string) []string {
	items, ok := r.keys[key].([]any)
	if !ok && r.keys[key] != nil {
		r.fail(key, "it must be a list of texts")
	}
	var list []string
	for _, v := range items {
		s, ok := v.(string)
		if !ok {
			r.fail(key, "it must be a list of texts")
		}
		list = append(list, s)
	}
	return list
}

// principals returns the ids of the principals that the entry lists. Display names have no effect.
func (r *entryReader) principals(parse func(string) (string, error)) []string {
	list := r.list("principals")
	for i, name := range list {
		id, err := parse(name)
		if err != nil {
			r.fail("principals", "%v", err)
			continue // the text stays in the list, where it matches no principal's id
		}
		list[i] = id
	}
	return list
}

func (r *entryReader) stringMap(key string) map[string]string {
	items, ok := r.keys[key].(map[string]any)
	if !ok && r.keys[key] != nil {
		r.fail(key, "it must be names with values")
	}
	if len(items) == 0 {
		return nil
	}
	m := map[string]string{}
	for name, v := range items {
		s, ok := v.(string)
		if !ok && v != nil {
			r.fail(key+" "+fault.Clip(name), "it must be a text")
		}
		m[name] = s
	}
	return m
}

func (r *entryReader) timeout(parse func(string) (time.Duration, error)) time.Duration {
	v := r.text("timeout")
	if v == "" || v == "0" {
		return 0
	}
	d, err := parse(v)
	if err != nil || d < time.Second || d > 24*time.Hour {
		r.fail("timeout", "%q must be seconds, or a duration such as 90s or 5m, from 1s to 24h", fault.Clip(v))
		return 0
	}
	return d
}

// server returns the server that the keys describe, without expansion.
func (r *entryReader) server(duration func(string) (time.Duration, error)) spec.Configured {
	s := spec.Configured{
		Kind: spec.Kind(r.text("type", "stdio", "http", "sse")), Command: r.text("command"), Args: r.list("args"),
		Env: r.stringMap("env"), URL: r.text("url"), Headers: r.stringMap("headers"),
		Timeout: r.timeout(duration), Disabled: r.boolean("disabled"),
		DisabledTools: r.list("disabled_tools"), EnabledTools: r.list("enabled_tools"),
		OAuth: spec.OAuth{ClientID: r.text("oauth_client_id"), ClientSecret: r.text("oauth_client_secret"),
			Issuer: r.text("oauth_issuer")},
		Where: spec.Where(r.text("where", "sandbox", "host")), User: r.text("user"),
		Trust: spec.Trust(r.text("trust", "warn", "hold")),
	}
	r.boolean("oauth") // accepted and ignored: the server itself tells whether users have to log in
	if _, given := r.keys["prefix"]; given {
		p := r.text("prefix")
		if !prefixPattern.MatchString(p) {
			r.fail("prefix", "%q must be at most 16 letters, digits, _ and -", fault.Clip(p))
		}
		s.Prefix = &p
	}
	if s.Where == "" {
		s.Where = spec.InSandbox
	}
	switch {
	case s.User != "" && s.Where != spec.OnHost:
		r.fail("user", "it is for a program with where: host; in a sandbox there is no other user")
	case s.Kind == "" && s.Command != "" && s.URL != "":
		r.fail("type", "there are both a command and a url: say stdio, http or sse")
	case s.Kind == "" && s.URL != "":
		s.Kind = spec.HTTP
	case s.Kind == "" && s.Command != "":
		s.Kind = spec.Stdio
	case s.Kind == "":
		r.fail("command", "there is neither a command, which is run, nor a url, which is connected to")
	case s.Kind == spec.Stdio && s.Command == "":
		r.fail("command", "type stdio needs one")
	case s.Kind != spec.Stdio && s.URL == "":
		r.fail("url", "type %s needs one", s.Kind)
	}
	if s.Kind == spec.Stdio {
		s.URL, s.Headers = "", nil
	} else {
		s.Command, s.Args, s.Env = "", nil, nil
	}
	return s
}

// expander replaces the references in an entry by values, and stores the first error.
type expander struct {
	ctx        context.Context
	env        variables
	expandText func(ctx context.Context, text string, env variables) (string, error)
	err        error
}

func (x *expander) text(field, text string) string {
	if x.err != nil {
		return ""
	}
	v, err := x.expandText(x.ctx, text, x.env)
	if err != nil {
		x.err = fmt.Errorf("%s: %w", field, err)
	}
	return v
}

func (x *expander) expandMap(field string, m map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		m[name] = x.text(field+" "+fault.Clip(name), m[name])
	}
}

func (x *expander) server(s *spec.Configured, home string) error {
	// This is checked before the expansion: a ~ that is part of a value does not mean the home folder.
	tilde := s.Command == "~" || strings.HasPrefix(s.Command, "~/")
	s.Command = x.text("command", strings.TrimPrefix(s.Command, map[bool]string{true: "~"}[tilde]))
	if tilde {
		s.Command = home + s.Command
	}
	for i, a := range s.Args {
		s.Args[i] = x.text(fmt.Sprintf("args %d", i+1), a)
	}
	x.expandMap("env", s.Env)
	s.URL = x.text("url", s.URL)
	x.expandMap("headers", s.Headers)
	maps.DeleteFunc(s.Headers, func(_, v string) bool { return v == "" })
	s.OAuth.ClientID = x.text("oauth_client_id", s.OAuth.ClientID)
	s.OAuth.ClientSecret = x.text("oauth_client_secret", s.OAuth.ClientSecret)
	s.OAuth.Issuer = x.text("oauth_issuer", s.OAuth.Issuer)
	return x.err
}

var (
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{0,16}$`)
	VariableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerPattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	hasNUL        = func(s string) bool { return strings.ContainsRune(s, 0) }
	hasControls   = func(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }
)

// checkServer returns an error if an expanded text is invalid. The error never contains the text, which may
// be secret.
func checkServer(s *spec.Configured) error {
	if s.Kind == spec.Stdio && s.Where == spec.OnHost {
		if err := spec.CheckHostUser(s.User); err != nil {
			return err
		}
	}
	if s.Kind == spec.Stdio && strings.TrimSpace(s.Command) == "" {
		return errors.New("command: it is empty after the expansion")
	}
	if hasNUL(s.Command) || slices.ContainsFunc(s.Args, hasNUL) {
		return errors.New("command and args cannot have a NUL in them")
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		if !VariableName.MatchString(k) {
			return fmt.Errorf("env %q: a name has letters, digits and _, and does not begin with a digit",
				fault.Clip(k))
		}
		if hasNUL(s.Env[k]) {
			return fmt.Errorf("env %s: a value cannot have a NUL in it", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Headers)) {
		if !headerPattern.MatchString(k) {
			return fmt.Errorf("headers %q: it is not a valid header name", fault.Clip(k))
		}
		if hasControls(s.Headers[k]) {
			return fmt.Errorf("headers %s: a value cannot have a line break or another control character in it", k)
		}
	}
	if s.Kind != spec.Stdio {
		u, err := url.Parse(s.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return errors.New("url: it must begin with http:// or https:// and a host")
		}
		return checkOAuth(s.OAuth)
	}
	return nil
}

// checkOAuth returns an error if the OAuth client settings are invalid. A client secret needs an issuer:
// without it, the MCP server could direct Sandlot to any authorization server, which would get the
// secret.
func checkOAuth(o spec.OAuth) error {
	if o.Issuer != "" {
		u, err := url.Parse(o.Issuer)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return errors.New("oauth_issuer: it must be the https:// address of an authorization server, as its " +
				"metadata have it in \"issuer\"")
		}
	}
	switch {
	case o.ClientSecret == "":
	case o.ClientID == "":
		return errors.New("oauth_client_secret: it needs oauth_client_id")
	case strings.HasPrefix(o.ClientID, "https://"):
		return errors.New("oauth_client_secret: a client whose oauth_client_id is an https:// address has none")
	case o.Issuer == "":
		return errors.New("oauth_client_secret: add oauth_issuer, the address of the authorization server that the " +
			"secret is for (\"issuer\" in its metadata, such as https://accounts.example.com); it is sent to no other")
	}
	return nil
}

// Summary returns the entry on one line, for people: not expanded, and with the names of variables and
// headers only.
func (e Entry) Summary() string {
	r := &entryReader{keys: e.keys}
	parts := append([]string{}, r.text("command"))
	parts = append(parts, r.list("args")...)
	if u := r.text("url"); u != "" {
		parts = append(parts, redactURL(u))
	}
	for _, key := range []string{"env", "headers"} {
		for _, name := range slices.Sorted(maps.Keys(r.stringMap(key))) {
			parts = append(parts, name+"=[secret]")
		}
	}
	if r.boolean("disabled") {
		parts = append(parts, "(disabled)")
	}
	return strings.TrimSpace(strings.Join(parts, " "))
}

// redactURL returns a URL with [secret] in place of the parts that may be secret: user, query and fragment.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		before, _, hasQuery := strings.Cut(text, "?")
		if hasQuery || strings.Contains(before, "@") {
			return "[secret]"
		}
		return text
	}
	if u.User != nil {
		u.User = url.User("[secret]")
	}
	if u.RawQuery != "" {
		u.RawQuery = "[secret]"
	}
	u.Fragment = ""
	out, _ := url.PathUnescape(u.String())
	return out
}
