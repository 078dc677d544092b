package tui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
)

// Tabs of the commands.
const (
	systemTab = iota
	userTab
	promptTab
)

// Bounds of the commands.
const (
	maxPrompting = 20 // servers whose prompts are listed
	maxScripts   = 100
	maxScript    = 64 << 10 // bytes
)

// openCommands opens the commands, and loads the prompts of servers.
func (m *model) openCommands() tea.Cmd {
	d := &menu{title: "Commands", tabs: []string{"System", "User", "MCP prompts"},
		empty: []string{"", "Your own commands are shell scripts (*.sh) in " + m.opts.Scripts + ". They run in the selected session.",
			"No MCP server that runs offers prompts."}}
	d.items = append(m.sessionItems(), m.serverItems()...)
	d.items = append(d.items, m.scriptItems()...)
	m.open(d)
	var all []tea.Cmd
	for _, s := range m.servers {
		if s.PromptCount > 0 && len(all) < maxPrompting {
			all = append(all, m.loadPrompts(d, s.ConnectionID, s.Name))
		}
	}
	return tea.Batch(all...)
}

// serverItems are the commands about the server and the interface.
func (m *model) serverItems() []item {
	then := func(do func(*model) tea.Cmd) func(*model) tea.Cmd {
		return func(m *model) tea.Cmd {
			m.closeDialog()
			return do(m)
		}
	}
	return []item{
		{title: "New session", note: "a sandbox of its own", do: then(func(m *model) tea.Cmd {
			return call(m, "session", "POST", "/v1/sessions", protocol.SessionRequest{}, func(m *model, s hub.Session) tea.Cmd {
				m.list.selected = s.ID
				return m.say("There is a session " + word(s.ID) + " now.")
			})
		})},
		{title: "MCP servers", note: "m", do: then(func(m *model) tea.Cmd {
			m.openServers()
			return nil
		})},
		{title: "Link to the web console", note: "counts once, for a minute", do: then(func(m *model) tea.Cmd {
			return call(m, "console", "POST", "/v1/console/codes", nil, func(m *model, l protocol.ConsoleLink) tea.Cmd {
				m.open(&page{title: "Web console", text: l.URL, copyable: true})
				return nil
			})
		})},
		{title: "Help", note: "?", do: then(func(m *model) tea.Cmd {
			m.open(help())
			return nil
		})},
		{title: "Leave", note: "ctrl+c", do: func(*model) tea.Cmd { return tea.Quit }},
	}
}

// scriptItems are the user's own commands.
func (m *model) scriptItems() (all []item) {
	if m.opts.Scripts == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(m.opts.Scripts, "*.sh")) // the pattern is right
	for _, file := range files[:min(len(files), maxScripts)] {
		name := strings.TrimSuffix(filepath.Base(file), ".sh")
		all = append(all, item{tab: userTab, title: name, note: "runs in the selected session", do: func(m *model) tea.Cmd {
			m.closeDialog()
			return m.script(name, file)
		}})
	}
	return all
}

type commandResult struct {
	toolFailed
	Output string `json:"output"`
}

// err is nil: a command that fails has output too.
func (commandResult) err() error { return nil }

// script runs one of the user's scripts in the selected session.
func (m *model) script(name, file string) tea.Cmd {
	s := m.session()
	if s == nil {
		return m.say("Select a session first.")
	}
	text, err := readScript(file)
	if err != nil {
		return m.fail(name, err)
	}
	return callTool(m, name, "execute_command", map[string]any{"command": text, "session_id": s.ID},
		func(m *model, r commandResult) tea.Cmd {
			m.open(&page{title: cut(word(name), 60), text: cmp.Or(r.Output, "(no output)"), copyable: true})
			return nil
		})
}

func readScript(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxScript+1))
	if err == nil && len(text) > maxScript {
		err = fmt.Errorf("%s has more than %d bytes", file, maxScript)
	}
	return string(text), err
}

// definition is what a server says of a prompt or a tool.
type definition struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Arguments   []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Required    bool   `json:"required"`
	} `json:"arguments"`
}

type offered struct {
	Remote string     `json:"remote"`
	Raw    definition `json:"raw"`
	Held   string     `json:"held"`
}

type inspected struct {
	Tools   []offered `json:"tools"`
	Prompts []offered `json:"prompts"`
}

func serverPath(id string) string { return "/v1/connections/" + url.PathEscape(id) }

// loadPrompts adds the prompts of a server to the commands.
func (m *model) loadPrompts(d *menu, id, server string) tea.Cmd {
	return call(m, "prompts of "+server, "GET", serverPath(id), nil, func(m *model, r inspected) tea.Cmd {
		for _, p := range r.Prompts {
			d.items = append(d.items, item{tab: promptTab, title: server + ": " + p.Remote, note: p.Raw.Description,
				do: func(m *model) tea.Cmd {
					m.closeDialog()
					m.open(promptForm(id, server, p))
					if len(p.Raw.Arguments) == 0 {
						f := m.dialog().(*form)
						return f.send(m, map[string]string{})
					}
					return nil
				}})
		}
		return nil
	})
}

type promptResult struct {
	Description string `json:"description"`
	Messages    []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
}

// promptForm asks for the arguments of a prompt, and shows its messages.
func promptForm(id, server string, p offered) *form {
	f := &form{title: cut(word(server+": "+p.Remote), 60), about: clean(p.Raw.Description)}
	for _, a := range p.Raw.Arguments {
		f.fields = append(f.fields, field{name: a.Name, label: a.Name, help: a.Description, kind: "string", required: a.Required})
	}
	f.send = func(m *model, values map[string]string) tea.Cmd {
		m.closeDialog()
		return call(m, "prompt", "POST", serverPath(id)+"/prompt", map[string]any{"name": p.Remote, "arguments": values},
			func(m *model, r promptResult) tea.Cmd {
				m.open(&page{title: f.title, text: r.text(), copyable: true})
				return nil
			})
	}
	return f
}

// text returns the messages as text: with one, its text alone.
func (r promptResult) text() string {
	var b strings.Builder
	for i, x := range r.Messages {
		if i > 0 {
			b.WriteString("\n\n")
		}
		if len(r.Messages) > 1 {
			fmt.Fprintf(&b, "[%s]\n", x.Role)
		}
		var content struct{ Type, Text string }
		if json.Unmarshal(x.Content, &content) == nil && content.Type == "text" {
			b.WriteString(content.Text)
			continue
		}
		var indented bytes.Buffer
		if json.Indent(&indented, x.Content, "", "  ") == nil {
			b.Write(indented.Bytes())
		}
	}
	return b.String()
}

// help says which keys there are.
func help() *page {
	return &page{title: "Help", text: `Questions stand on the top. A key answers the one that you see, once it
has been there for half a second:
  a  yes, once                 S  yes, for this session
  A  yes, always               d  no, once
  [ ]  another question        pgdn pgup  the rest of its text

  j k, arrows  select          enter  what the selected one is
  tab  the timeline, or that   J K  scroll it
  /  filter                    esc  back
  ctrl+p :  commands           m  MCP servers
  s  shell in the session      l  its output, or a server's log
  o  open one of its ports     r  connect now
  ?  this help                 q ctrl+c  leave

● runs  ◐ starts  ○ sleeps or is stopped  ✗ error  ▲ needs you`}
}
