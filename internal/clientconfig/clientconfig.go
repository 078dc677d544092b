// Package clientconfig knows MCP clients, the programs that people use agents in:
// where each keeps its list of servers, in which format, what the entries mean, and how
// one entry is put into that list with nothing else of the file changed.
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

// Client is one such program.
type Client struct {
	ID    string // as in `sandlot install ID`
	Title string
	// Next says what the user does when the file is changed.
	Next string

	format *Format
	paths  paths
	// entry is how it writes a server down.
	entry func(Server) entry
	// variable is how it names a variable of its environment; empty: it knows none.
	variable string
	// command is its own command that does the same, if it has one.
	command func(Server) string
}

// paths of the file: in the home folder, or below a folder that a variable names.
type paths struct{ linux, mac, windows string }

// Server is our server as a client reaches it.
type Server struct {
	Name string
	URL  string // of MCP; empty: the program below, and nothing else
	// Token for the URL, or the name of the variable that the client has it in.
	Token, TokenEnv string
	// Program and Args start a server on standard input and output, for clients
	// that know nothing else.
	Program string
	Args    []string
}

// entry is a server in a client's file; each client uses some of the keys.
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

// entryKeys are the keys of an entry that Put writes, or takes away; all others are
// the user's.
var entryKeys = []string{"type", "command", "args", "env", "url", "serverUrl", "httpUrl", "headers"}

func (s Server) headers() map[string]string {
	if s.Token == "" {
		return nil
	}
	return map[string]string{"Authorization": "Bearer " + s.Token}
}

func plain(s Server) entry   { return entry{URL: s.URL, Headers: s.headers()} }
func typed(s Server) entry   { return entry{Type: "http", URL: s.URL, Headers: s.headers()} }
func cascade(s Server) entry { return entry{ServerURL: s.URL, Headers: s.headers()} }
func gemini(s Server) entry  { return entry{HTTPURL: s.URL, Headers: s.headers()} }

func stdio(s Server) entry {
	e := entry{Command: s.Program, Args: s.Args}
	if s.URL != "" {
		e.Env = map[string]string{"SANDLOT_SERVER": strings.TrimSuffix(s.URL, "/mcp")}
		if s.Token != "" {
			e.Env["SANDLOT_TOKEN"] = s.Token
		}
	}
	return e
}

// all is in the order in which they are listed.
var all = []Client{
	{ID: "claude-desktop", Title: "Claude Desktop", Next: "Quit Claude Desktop and start it again.",
		format: editor, entry: stdio, paths: paths{"$XDG_CONFIG_HOME/Claude/claude_desktop_config.json",
			"~/Library/Application Support/Claude/claude_desktop_config.json",
			`%APPDATA%\Claude\claude_desktop_config.json`}},
	{ID: "claude-code", Title: "Claude Code", Next: "Start a new session of Claude Code; /mcp shows the server.",
		format: editor, entry: typed, variable: "${%s}", paths: paths{"~/.claude.json", "~/.claude.json",
			`%USERPROFILE%\.claude.json`},
		command: func(s Server) string {
			return words("claude", "mcp", "add", "--scope", "user", "--transport", "http", s.Name, s.URL) +
				header(" --header", s)
		}},
	{ID: "cursor", Title: "Cursor", Next: "Open Cursor's settings, MCP: the server is in the list.",
		format: editor, entry: plain, variable: "${env:%s}",
		paths: paths{"~/.cursor/mcp.json", "~/.cursor/mcp.json", `%USERPROFILE%\.cursor\mcp.json`}},
	{ID: "vscode", Title: "VS Code",
		Next:   "Run \"MCP: List Servers\" from the command palette of VS Code, and start the server.",
		format: vsCode, entry: typed, variable: "${env:%s}", paths: paths{"$XDG_CONFIG_HOME/Code/User/mcp.json",
			"~/Library/Application Support/Code/User/mcp.json", `%APPDATA%\Code\User\mcp.json`}},
	{ID: "crush", Title: "Crush", Next: "Start Crush again.",
		format: crush, entry: typed, variable: "$%s", paths: paths{"$XDG_CONFIG_HOME/crush/crush.json",
			"$XDG_CONFIG_HOME/crush/crush.json", `%LOCALAPPDATA%\crush\crush.json`}},
	{ID: "kiro", Title: "Kiro", Next: "Kiro connects when the file is saved; look at its panel MCP Servers.",
		format: editor, entry: plain, variable: "${%s}", paths: paths{"~/.kiro/settings/mcp.json",
			"~/.kiro/settings/mcp.json", `%USERPROFILE%\.kiro\settings\mcp.json`}},
	{ID: "windsurf", Title: "Windsurf",
		Next:   "Press the refresh button of the MCP servers in Windsurf's Cascade panel.",
		format: editor, entry: cascade, variable: "${env:%s}",
		paths: paths{"~/.codeium/windsurf/mcp_config.json", "~/.codeium/windsurf/mcp_config.json",
			`%USERPROFILE%\.codeium\windsurf\mcp_config.json`}},
	{ID: "gemini", Title: "Gemini CLI", Next: "Start Gemini CLI again; /mcp shows the server.",
		format: editor, entry: gemini, variable: "${%s}", paths: paths{"~/.gemini/settings.json",
			"~/.gemini/settings.json", `%USERPROFILE%\.gemini\settings.json`},
		command: func(s Server) string {
			return words("gemini", "mcp", "add", "--scope", "user", "--transport", "http") + header(" --header", s) +
				" " + words(s.Name, s.URL)
		}},
}

// All lists the clients.
func All() []Client { return append([]Client{}, all...) }

// IDs lists their names.
func IDs() []string {
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = c.ID
	}
	return ids
}

// Find returns the client of that name, or a NotFound fault that lists all.
func Find(id string) (Client, error) {
	for _, c := range all {
		if c.ID == id {
			return c, nil
		}
	}
	near := fault.Meant(id, IDs())
	shown := []rune(id)
	return Client{}, fault.New(fault.NotFound, "there is no client %q%s It must be one of %s",
		string(shown[:min(len(shown), 40)]),
		map[bool]string{true: ".", false: near}[near == ""], strings.Join(IDs(), ", ")).With("clients", IDs())
}

// Stdio says whether the client can only start programs.
func (c Client) Stdio() bool { return c.entry(Server{Program: "x"}).Command != "" }

// Command is the client's own command that adds the server, or empty. A token
// that the client is to have in a variable stays one: the shell puts it in.
func (c Client) Command(s Server) string {
	if c.command == nil {
		return ""
	}
	return c.command(s)
}

// Files says where the client keeps its servers, by operating system.
func (c Client) Files() map[string]string {
	return map[string]string{"linux": strings.Replace(c.paths.linux, "$XDG_CONFIG_HOME", "~/.config", 1),
		"macos": strings.Replace(c.paths.mac, "$XDG_CONFIG_HOME", "~/.config", 1), "windows": c.paths.windows}
}

// File is the path of its file on a machine with that operating system (as in
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

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// Check says what is wrong with the server, for this client. It makes the
// client's own word of a variable.
func (c Client) Check(s *Server) error {
	if !nameForm.MatchString(s.Name) {
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
	if c.variable == "" {
		return fmt.Errorf("%s puts no variables into its settings; give the token itself", c.Title)
	}
	if !variableForm.MatchString(s.TokenEnv) {
		return fmt.Errorf("%q is no name of a variable", s.TokenEnv)
	}
	s.Token = fmt.Sprintf(c.variable, s.TokenEnv)
	return nil
}

// Config is the object to merge into the client's file.
func (c Client) Config(s Server) map[string]any {
	return map[string]any{c.format.section: map[string]any{s.Name: c.entry(s)}}
}

// Snippet is Config as text, for people.
func (c Client) Snippet(s Server) string { return render(c.Config(s), "", "  ") }

func render(v any, prefix, indent string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	_ = enc.Encode(v) // of texts alone
	return strings.TrimSuffix(b.String(), "\n")
}

var safeWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// words are one line for a shell.
func words(list ...string) string {
	for i, w := range list {
		if !safeWord.MatchString(w) {
			list[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(list, " ")
}

// header is the option for the token. In single quotes a variable is left to
// the client.
func header(option string, s Server) string {
	h := s.headers()["Authorization"]
	switch {
	case h == "":
		return ""
	case s.TokenEnv == "" && safeWord.MatchString(s.Token):
		return option + ` "Authorization: ` + h + `"`
	}
	return option + " " + words("Authorization: "+h)
}
