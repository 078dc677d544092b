// Package clientconfig knows the configuration files of MCP clients (programs such as Claude Code and
// Cursor): their paths, their formats, and what their entries mean. It adds an entry to such a file
// without any other change of it.
package clientconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"sandlot/internal/fault"
)

// Client is an MCP client.
type Client struct {
	ID    string // as in `sandlot install ID`
	Title string
	// Next tells the user what to do after the file has changed.
	Next string

	format *Format
	// syntax is that of the client's file.
	syntax syntax
	// section is the key of the servers in it; empty: that of format.
	section string
	paths   paths
	// home is a variable with the folder of the client's file, and the file's name in it.
	home [2]string
	// sibling is another name that the file may have; empty: it has one name.
	sibling string
	// header begins a new file.
	header string
	// entry returns the client's entry for a server.
	entry func(Server) entry
	// stdioOnly: the client can only start programs, and so cannot connect to a URL.
	stdioOnly bool
	// variableFormat is the format of a reference to an environment variable; empty: the client expands none.
	variableFormat string
	// command returns the client's own shell command that adds the server; nil: there is none.
	command func(Server) string
	// asks is the client's own command that says what it thinks of a server, whose name is in the place of NAME; nil:
	// there is none.
	asks []string
}

// syntax is the syntax of a client's file.
type syntax int

const (
	jsonc    syntax = iota // JSON, perhaps with comments
	toml                   // with a table for each server
	yamlMap                // with a map of servers
	yamlList               // with a list of servers that have a name
)

// paths are the paths of the client's file, by operating system. They begin with ~ or a variable.
type paths struct{ linux, mac, windows string }

// Server says how a client reaches this Sandlot server.
type Server struct {
	Name string
	URL  string // of the MCP endpoint; empty: the client starts Program, which needs no server
	// Token is the token for the URL; TokenEnv is the name of the client's variable that has it. Check
	// sets Token to the reference if TokenEnv is set.
	Token, TokenEnv string
	// Program and Args start a server on standard input and output, for clients that only support
	// that.
	Program string
	Args    []string
}

// entry is a server in a client's file: its keys, in the order in which they are written.
type entry []field

// field is a key of an entry.
type field struct {
	key   string
	value any // a text, a number, a boolean, a list or a map of texts, or an entry
	// lasting is set for a key that stays as it is when it is there: its user may have chosen another value.
	lasting bool
}

// MarshalJSON implements json.Marshaler.
func (e entry) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range e {
		if i > 0 {
			b.WriteByte(',')
		}
		key, _ := json.Marshal(f.key) // a text always encodes
		value, err := encodePlain(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(append(append(key, ':'), value...))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encodePlain is json.Marshal without escapes for HTML.
func encodePlain(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// with returns the entry with one more key, unless the value is empty.
func (e entry) with(key string, value any) entry {
	switch v := value.(type) {
	case string:
		if v == "" {
			return e
		}
	case map[string]string:
		if len(v) == 0 {
			return e
		}
	case []string:
		if len(v) == 0 {
			return e
		}
	}
	return append(e, field{key: key, value: value})
}

// lasting returns the entry with one more key that stays as it is when it is there.
func (e entry) lasting(key string, value any) entry { return append(e, field{key, value, true}) }

// entryKeys are the keys of an entry that Put sets or removes, of all clients. Put does not change other keys.
var entryKeys = []string{"type", "command", "args", "env", "url", "serverUrl", "httpUrl", "headers"}

// keys are the keys of this client's entries that Put sets or removes: those that an entry may have.
func (c Client) keys() []string {
	all := slices.Clone(entryKeys)
	program := Server{Program: "x", Args: []string{"x"}}
	for _, s := range []Server{{URL: "x", Token: "x"}, {URL: "x", Token: "x", TokenEnv: "x"}, program} {
		for _, f := range c.entry(s) {
			if !f.lasting && !slices.Contains(all, f.key) {
				all = append(all, f.key)
			}
		}
	}
	return all
}

func (s Server) headers() map[string]string {
	if s.Token == "" {
		return nil
	}
	return map[string]string{"Authorization": "Bearer " + s.Token}
}

// waits is how long clients that give up sooner wait for a call, in seconds: longer than Sandlot's own limit.
const waits = 330

// The entries of clients that can do both: without a URL, they start the program.

func plainEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{}.with("url", s.URL).with("headers", s.headers())
}

func typedEntry(s Server) entry {
	if s.URL == "" {
		return append(entry{}.with("type", "stdio"), stdioEntry(s)...)
	}
	return entry{}.with("type", "http").with("url", s.URL).with("headers", s.headers())
}

// crushEntry has the time that a server may take to start: Crush gives it 10 seconds, and a call as long as it takes.
func crushEntry(s Server) entry { return typedEntry(s).lasting("timeout", 60) }

func windsurfEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{}.with("serverUrl", s.URL).with("headers", s.headers())
}

func geminiEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{}.with("httpUrl", s.URL).with("headers", s.headers())
}

func codexEntry(s Server) entry {
	e := stdioEntry(s)
	switch {
	case s.URL == "":
	case s.TokenEnv != "":
		e = entry{}.with("url", s.URL).with("bearer_token_env_var", s.TokenEnv)
	default:
		e = entry{}.with("url", s.URL).with("http_headers", s.headers())
	}
	return e.lasting("startup_timeout_sec", 60).lasting("tool_timeout_sec", waits)
}

func openCodeEntry(s Server) entry {
	if s.URL == "" {
		return entry{}.with("type", "local").with("command", append([]string{s.Program}, s.Args...)).
			lasting("enabled", true).lasting("timeout", waits*1000)
	}
	return entry{}.with("type", "remote").with("url", s.URL).with("headers", s.headers()).lasting("enabled", true).
		lasting("timeout", waits*1000)
}

func copilotEntry(s Server) entry {
	e := entry{}.with("type", "http").with("url", s.URL).with("headers", s.headers())
	if s.URL == "" {
		e = append(entry{}.with("type", "local"), stdioEntry(s)...)
	}
	return e.lasting("tools", []string{"*"})
}

func clineEntry(s Server) entry {
	transport := entry{}.with("type", "streamableHttp").with("url", s.URL).with("headers", s.headers())
	if s.URL == "" {
		transport = append(entry{}.with("type", "stdio"), stdioEntry(s)...)
	}
	return entry{}.with("transport", transport).lasting("timeout", waits)
}

func rooEntry(s Server) entry {
	e := entry{}.with("type", "streamable-http").with("url", s.URL).with("headers", s.headers())
	if s.URL == "" {
		e = append(entry{}.with("type", "stdio"), stdioEntry(s)...)
	}
	return e.lasting("timeout", waits)
}

func zedEntry(s Server) entry { return plainEntry(s).lasting("timeout", waits) }

func continueEntry(s Server) entry {
	e := append(entry{}.with("type", "stdio"), stdioEntry(s)...)
	if s.URL != "" {
		e = entry{}.with("type", "streamable-http").with("url", s.URL)
		if h := s.headers(); h != nil {
			e = e.with("requestOptions", entry{}.with("headers", h))
		}
	}
	return e.lasting("connectionTimeout", waits*1000)
}

func gooseEntry(s Server) entry {
	e := entry{}.with("type", "stdio").with("name", s.Name).with("cmd", s.Program).with("args", s.Args)
	if s.URL != "" {
		e = entry{}.with("type", "streamable_http").with("name", s.Name).with("uri", s.URL).with("headers", s.headers())
	}
	if s.TokenEnv != "" {
		e = e.with("env_keys", []string{s.TokenEnv})
	}
	return e.lasting("description", "A computer for code, commands and files").lasting("enabled", true).
		lasting("timeout", waits)
}

// stdioEntry is that of a client that starts the program, which then uses the server at the URL, if there is one.
func stdioEntry(s Server) entry {
	e := entry{}.with("command", s.Program).with("args", s.Args)
	if s.URL == "" {
		return e
	}
	env := map[string]string{"SANDLOT_SERVER": strings.TrimSuffix(s.URL, "/mcp")}
	if s.Token != "" {
		env["SANDLOT_TOKEN"] = s.Token
	}
	return e.with("env", env)
}

// clients has the clients in the order in which they are listed.
var clients = []Client{
	{ID: "claude-desktop", Title: "Claude Desktop", Next: "Quit Claude Desktop and start it again.",
		format: editor, entry: stdioEntry, stdioOnly: true, paths: paths{
			"$XDG_CONFIG_HOME/Claude/claude_desktop_config.json",
			"~/Library/Application Support/Claude/claude_desktop_config.json",
			`%APPDATA%\Claude\claude_desktop_config.json`}},
	{ID: "claude-code", Title: "Claude Code", Next: "Start a new session of Claude Code; /mcp shows the server.",
		format: editor, entry: typedEntry, variableFormat: "${%s}", paths: paths{"~/.claude.json", "~/.claude.json",
			`%USERPROFILE%\.claude.json`}, home: [2]string{"CLAUDE_CONFIG_DIR", ".claude.json"},
		asks: []string{"claude", "mcp", "get", "NAME"},
		command: func(s Server) string {
			return shellWords("claude", "mcp", "add", "--scope", "user", "--transport", "http", s.Name, s.URL) +
				headerOption(" --header", s)
		}},
	{ID: "cursor", Title: "Cursor", Next: "Open Cursor's settings, MCP: the server is in the list.",
		format: editor, entry: plainEntry, variableFormat: "${env:%s}",
		paths: paths{"~/.cursor/mcp.json", "~/.cursor/mcp.json", `%USERPROFILE%\.cursor\mcp.json`}},
	{ID: "vscode", Title: "VS Code",
		Next:   "Run \"MCP: List Servers\" from the command palette of VS Code, and start the server.",
		format: vsCode, entry: typedEntry, variableFormat: "${env:%s}",
		paths: paths{"$XDG_CONFIG_HOME/Code/User/mcp.json",
			"~/Library/Application Support/Code/User/mcp.json", `%APPDATA%\Code\User\mcp.json`}},
	{ID: "crush", Title: "Crush", Next: "Start Crush again.",
		format: crush, entry: crushEntry, variableFormat: "$%s", paths: paths{"$XDG_CONFIG_HOME/crush/crush.json",
			"$XDG_CONFIG_HOME/crush/crush.json", `%USERPROFILE%\.config\crush\crush.json`},
		home: [2]string{"CRUSH_GLOBAL_CONFIG", "crush.json"}},
	{ID: "kiro", Title: "Kiro", Next: "Kiro connects when the file is saved; look at its panel MCP Servers.",
		format: editor, entry: plainEntry, variableFormat: "${%s}", paths: paths{"~/.kiro/settings/mcp.json",
			"~/.kiro/settings/mcp.json", `%USERPROFILE%\.kiro\settings\mcp.json`}},
	{ID: "windsurf", Title: "Windsurf",
		Next:   "Press the refresh button of the MCP servers in Windsurf's Cascade panel.",
		format: editor, entry: windsurfEntry, variableFormat: "${env:%s}",
		paths: paths{"~/.codeium/windsurf/mcp_config.json", "~/.codeium/windsurf/mcp_config.json",
			`%USERPROFILE%\.codeium\windsurf\mcp_config.json`}},
	{ID: "gemini", Title: "Gemini CLI", Next: "Start Gemini CLI again; /mcp shows the server.",
		format: editor, entry: geminiEntry, variableFormat: "${%s}", paths: paths{"~/.gemini/settings.json",
			"~/.gemini/settings.json", `%USERPROFILE%\.gemini\settings.json`},
		command: func(s Server) string {
			return shellWords("gemini", "mcp", "add", "--scope", "user", "--transport", "http") +
				headerOption(" --header", s) +
				" " + shellWords(s.Name, s.URL)
		},
		asks: []string{"gemini", "mcp", "list"}},
	{ID: "codex", Title: "Codex", Next: "Start Codex again; /mcp shows the server.",
		format: editor, syntax: toml, section: "mcp_servers", entry: codexEntry, variableFormat: "%s",
		paths: samePath("~/.codex/config.toml"), home: [2]string{"CODEX_HOME", "config.toml"},
		command: func(s Server) string {
			words := []string{"codex", "mcp", "add", s.Name, "--url", s.URL}
			if s.TokenEnv != "" {
				words = append(words, "--bearer-token-env-var", s.TokenEnv)
			} else if s.Token != "" {
				return "" // its command takes no token
			}
			return shellWords(words...)
		},
		asks: []string{"codex", "mcp", "get", "NAME"}},
	{ID: "opencode", Title: "OpenCode", Next: "Start OpenCode again; `opencode mcp list` shows the server.",
		format: editor, section: "mcp", entry: openCodeEntry, variableFormat: "{env:%s}", sibling: "opencode.jsonc",
		paths: paths{"$XDG_CONFIG_HOME/opencode/opencode.json", "$XDG_CONFIG_HOME/opencode/opencode.json",
			`%USERPROFILE%\.config\opencode\opencode.json`}, asks: []string{"opencode", "mcp", "list"}},
	{ID: "copilot", Title: "GitHub Copilot CLI", Next: "Start Copilot again; /mcp shows the server.",
		format: editor, section: "mcpServers", entry: copilotEntry, variableFormat: "${%s}",
		paths: samePath("~/.copilot/mcp-config.json"), home: [2]string{"COPILOT_HOME", "mcp-config.json"},
		asks: []string{"copilot", "mcp", "get", "NAME"}},
	{ID: "cline", Title: "Cline", Next: "Start Cline again.", format: editor, entry: clineEntry,
		paths: samePath("~/.cline/data/settings/cline_mcp_settings.json")},
	{ID: "qwen", Title: "Qwen Code", Next: "Start Qwen Code again; /mcp shows the server.", format: editor,
		entry: geminiEntry, variableFormat: "${%s}", paths: samePath("~/.qwen/settings.json"),
		asks: []string{"qwen", "mcp", "list"}},
	{ID: "continue", Title: "Continue", Next: "Start Continue again.", format: editor, syntax: yamlList,
		section: "mcpServers", entry: continueEntry, variableFormat: "${{ secrets.%s }}",
		paths: samePath("~/.continue/config.yaml"), header: "name: Local\nversion: 1.0.0\nschema: v1\n"},
	{ID: "zed", Title: "Zed", Next: "Open Zed's settings, AI, MCP Servers: the server is in the list.", format: editor,
		section: "context_servers", entry: zedEntry, paths: paths{"$XDG_CONFIG_HOME/zed/settings.json",
			"~/.config/zed/settings.json", `%APPDATA%\Zed\settings.json`}},
	{ID: "goose", Title: "Goose", Next: "Start Goose again.", format: editor, syntax: yamlMap, section: "extensions",
		entry: gooseEntry, variableFormat: "${%s}", paths: paths{"$XDG_CONFIG_HOME/goose/config.yaml",
			"~/.config/goose/config.yaml", `%APPDATA%\Block\goose\config\config.yaml`}},
	{ID: "lm-studio", Title: "LM Studio", Next: "Switch the server on in LM Studio's sidebar, Program.", format: editor,
		entry: plainEntry, paths: samePath("~/.lmstudio/mcp.json")},
	{ID: "roo", Title: "Roo Code", Next: "Press the refresh button of the MCP servers in Roo Code's panel.",
		format: editor, entry: rooEntry, variableFormat: "${env:%s}", paths: paths{
			"$XDG_CONFIG_HOME/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
			"~/Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
			`%APPDATA%\Code\User\globalStorage\rooveterinaryinc.roo-cline\settings\mcp_settings.json`}},
	{ID: "jetbrains", Title: "JetBrains Junie", Next: "Look at the server in the IDE's settings: Tools, Junie, MCP " +
		"Settings.", format: editor, entry: stdioEntry, stdioOnly: true, paths: samePath("~/.junie/mcp/mcp.json")},
}

// samePath returns the paths of a file that is at the same place in the home folder of each system.
func samePath(p string) paths {
	return paths{p, p, strings.ReplaceAll(strings.Replace(p, "~", "%USERPROFILE%", 1), "/", `\`)}
}

// All lists the clients.
func All() []Client { return append([]Client{}, clients...) }

// IDs lists the ids of the clients.
func IDs() []string {
	ids := make([]string, len(clients))
	for i, c := range clients {
		ids[i] = c.ID
	}
	return ids
}

// Find returns the client with that id, or a NotFound fault that lists all ids.
func Find(id string) (Client, error) {
	for _, c := range clients {
		if c.ID == id {
			return c, nil
		}
	}
	suggestion := fault.DidYouMean(id, IDs())
	shown := []rune(id)
	return Client{}, fault.New(fault.NotFound, "there is no client %q%s It must be one of %s",
		string(shown[:min(len(shown), 40)]),
		map[bool]string{true: ".", false: suggestion}[suggestion == ""], strings.Join(IDs(), ", ")).
		With("clients", IDs())
}

// StdioOnly reports whether the client can only start programs, and so cannot connect to a URL.
func (c Client) StdioOnly() bool { return c.stdioOnly }

// Asks returns the client's own command that says what it thinks of a server of that name; nil: there is none.
func (c Client) Asks(name string) []string {
	command := slices.Clone(c.asks)
	for i, word := range command {
		if word == "NAME" {
			command[i] = name
		}
	}
	return command
}

// Sibling returns the path of another file that the client reads in place of the one at a path; empty: there is none.
func (c Client) Sibling(file string) string {
	if c.sibling == "" {
		return ""
	}
	return file[:strings.LastIndexAny(file, `/\\`)+1] + c.sibling
}

// sectionKey is the key of the servers in the client's file.
func (c Client) sectionKey() string { return cmp.Or(c.section, c.format.section) }

// Command returns the client's own shell command that adds the server, or empty. If the token is in a
// variable, the command contains the reference for the client.
func (c Client) Command(s Server) string {
	if c.command == nil || s.URL == "" {
		return ""
	}
	return c.command(s)
}

// Files returns the path of the client's file by operating system, for people.
func (c Client) Files() map[string]string {
	return map[string]string{"linux": strings.Replace(c.paths.linux, "$XDG_CONFIG_HOME", "~/.config", 1),
		"macos": strings.Replace(c.paths.mac, "$XDG_CONFIG_HOME", "~/.config", 1), "windows": c.paths.windows}
}

// File returns the path of the client's file on a machine with that operating system (as in
// runtime.GOOS), home folder and environment.
func (c Client) File(system, home string, getenv func(string) string) (string, error) {
	p := map[string]string{"darwin": c.paths.mac, "windows": c.paths.windows}[system]
	if p == "" {
		p = c.paths.linux
	}
	if name := c.home[0]; name != "" && getenv(name) != "" {
		return path.Join(getenv(name), c.home[1]), nil
	}
	xdg := getenv("XDG_CONFIG_HOME")
	if !path.IsAbs(xdg) {
		xdg = "~/.config"
	}
	p = strings.Replace(p, "$XDG_CONFIG_HOME", xdg, 1)
	if system == "windows" {
		for _, name := range []string{"APPDATA", "USERPROFILE"} {
			p = strings.Replace(p, "%"+name+"%", getenv(name), 1)
		}
		return p, nil
	}
	if strings.HasPrefix(p, "~/") && !path.IsAbs(home) {
		return "", fmt.Errorf("the home folder is not known; name the file with --file")
	}
	return strings.Replace(p, "~", home, 1), nil
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// Check returns an error if this client cannot have the server. If s.TokenEnv is set, it sets s.Token to
// the client's reference to that variable.
func (c Client) Check(s *Server) error {
	if !namePattern.MatchString(s.Name) {
		return fmt.Errorf("the name %q must have 1 to 32 letters, digits, _ and -, and begin with one of the first two",
			s.Name)
	}
	if s.URL != "" {
		u, err := url.Parse(s.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("the URL must be http:// or https://, a host and a path, such as " +
				"http://localhost:8000/mcp")
		}
	}
	if s.TokenEnv == "" {
		if strings.ContainsFunc(s.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("the token must be one word of printable letters")
		}
		return nil
	}
	if s.Token != "" {
		return fmt.Errorf("give either the token or the name of its variable, not both")
	}
	if c.variableFormat == "" {
		return fmt.Errorf("%s puts no variables into its settings; give the token itself", c.Title)
	}
	if !variablePattern.MatchString(s.TokenEnv) {
		return fmt.Errorf("%q is not the name of a variable", s.TokenEnv)
	}
	s.Token = fmt.Sprintf(c.variableFormat, s.TokenEnv)
	return nil
}

// Config returns, as JSON, what is merged into the client's file.
func (c Client) Config(s Server) map[string]any {
	if c.syntax == yamlList {
		return map[string]any{c.sectionKey(): []entry{append(entry{}.with("name", s.Name), c.entry(s)...)}}
	}
	return map[string]any{c.sectionKey(): map[string]any{s.Name: c.entry(s)}}
}

// Snippet returns Config as text in the syntax of the client's file.
func (c Client) Snippet(s Server) string {
	switch c.syntax {
	case toml:
		return strings.TrimSuffix(c.tomlTable(s), "\n")
	case yamlMap, yamlList:
		return strings.TrimSuffix(c.yamlSection(s), "\n")
	}
	return render(c.Config(s), "", "  ")
}

// Text returns Snippet if the client's file is not JSON, and else nothing.
func (c Client) Text(s Server) string {
	if c.syntax == jsonc {
		return ""
	}
	return c.Snippet(s)
}

func render(v any, prefix, indent string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	_ = enc.Encode(v) // an entry has only strings, which always encode
	return strings.TrimSuffix(b.String(), "\n")
}

var safeWordPattern = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWords joins words to one shell command line, with quotes where necessary.
func shellWords(list ...string) string {
	for i, w := range list {
		if !safeWordPattern.MatchString(w) {
			list[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(list, " ")
}

// headerOption returns the option with the Authorization header. A reference to a variable is in single quotes,
// so that the client expands it and not the shell.
func headerOption(option string, s Server) string {
	h := s.headers()["Authorization"]
	switch {
	case h == "":
		return ""
	case s.TokenEnv == "" && safeWordPattern.MatchString(s.Token):
		return option + ` "Authorization: ` + h + `"`
	}
	return option + " " + shellWords("Authorization: "+h)
}
