// Package clientconfig knows the configuration files of MCP clients (programs such as Claude Code and
// Cursor): their paths, their formats, and what their entries mean. It adds an entry to such a file
// without any other change of it.
package clientconfig

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"regexp"
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
	paths  paths
	// entry returns the client's entry for a server.
	entry func(Server) entry
	// stdioOnly: the client can only start programs, and so cannot connect to a URL.
	stdioOnly bool
	// variableFormat is the format of a reference to an environment variable; empty: the client expands none.
	variableFormat string
	// command returns the client's own shell command that adds the server; nil: there is none.
	command func(Server) string
}

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

// entry is a server in a client's file. Each client uses some of the keys.
type entry struct {
	Type      string            `json:"type,omitempty"`
	Command   string            `json:"command,omitempty"`
	Args      []string          `json:"args,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	URL       string            `json:"url,omitempty"`
	ServerURL string            `json:"serverUrl,omitempty"`
	HTTPURL   string            `json:"httpUrl,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
}

// entryKeys are the keys of an entry that Put sets or removes. Put does not change other keys.
var entryKeys = []string{"type", "command", "args", "env", "url", "serverUrl", "httpUrl", "headers"}

func (s Server) headers() map[string]string {
	if s.Token == "" {
		return nil
	}
	return map[string]string{"Authorization": "Bearer " + s.Token}
}

// The entries of clients that can do both: without a URL, they start the program.

func plainEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{URL: s.URL, Headers: s.headers()}
}

func typedEntry(s Server) entry {
	if s.URL == "" {
		e := stdioEntry(s)
		e.Type = "stdio"
		return e
	}
	return entry{Type: "http", URL: s.URL, Headers: s.headers()}
}

func windsurfEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{ServerURL: s.URL, Headers: s.headers()}
}

func geminiEntry(s Server) entry {
	if s.URL == "" {
		return stdioEntry(s)
	}
	return entry{HTTPURL: s.URL, Headers: s.headers()}
}

// stdioEntry is that of a client that starts the program, which then uses the server at the URL, if there is one.
func stdioEntry(s Server) entry {
	e := entry{Command: s.Program, Args: s.Args}
	if s.URL != "" {
		e.Env = map[string]string{"SANDLOT_SERVER": strings.TrimSuffix(s.URL, "/mcp")}
		if s.Token != "" {
			e.Env["SANDLOT_TOKEN"] = s.Token
		}
	}
	return e
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
			`%USERPROFILE%\.claude.json`},
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
		format: crush, entry: typedEntry, variableFormat: "$%s", paths: paths{"$XDG_CONFIG_HOME/crush/crush.json",
			"$XDG_CONFIG_HOME/crush/crush.json", `%LOCALAPPDATA%\crush\crush.json`}},
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
		}},
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
	if dir := getenv("CLAUDE_CONFIG_DIR"); c.ID == "claude-code" && dir != "" {
		return path.Join(dir, ".claude.json"), nil
	}
	xdg := getenv("XDG_CONFIG_HOME")
	if !path.IsAbs(xdg) {
		xdg = "~/.config"
	}
	p = strings.Replace(p, "$XDG_CONFIG_HOME", xdg, 1)
	if system == "windows" {
		for _, name := range []string{"APPDATA", "LOCALAPPDATA", "USERPROFILE"} {
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
		return fmt.Errorf("give the token, or the name of a variable that has it, and not both")
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

// Config returns the JSON object to merge into the client's file.
func (c Client) Config(s Server) map[string]any {
	return map[string]any{c.format.section: map[string]any{s.Name: c.entry(s)}}
}

// Snippet returns Config as text, for people.
func (c Client) Snippet(s Server) string { return render(c.Config(s), "", "  ") }

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
