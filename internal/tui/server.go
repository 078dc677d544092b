package tui

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/hub"
)

// serverMark returns how the state of a third-party server looks.
func serverMark(s *hub.ServerRow) (sign, text string) {
	switch s.State {
	case "connected":
		return "●", "connected"
	case "idle":
		return "○", "idle"
	case "starting", "installing":
		return "◐", s.State
	case "backoff":
		return "◐", "starts again"
	case "needs auth":
		return "▲", "needs log-in"
	case "needs_approval":
		return "▲", counted(len(s.HeldTools), "tool", "tools") + " held back"
	case "needs_env":
		return "✗", "lacks values"
	case "disabled":
		return "○", "stopped"
	case "error":
		return "✗", "error"
	}
	return "◐", word(s.State)
}

// offers says what a server offers.
func offers(s *hub.ServerRow) string {
	text := counted(s.ToolCount, "tool", "tools")
	if s.PromptCount > 0 {
		text += ", " + counted(s.PromptCount, "prompt", "prompts")
	}
	return text
}

// openServers opens the list of third-party servers, with what can be done with each.
func (m *model) openServers() {
	d := &menu{title: "MCP servers", empty: []string{"There is none. Add one: sandlot mcp add time -- uvx mcp-server-time"},
		hint: "enter tools   s start, restart   x stop   l log   i log in   esc closes"}
	ids := []string{}
	for _, s := range m.servers {
		id, name := s.ConnectionID, word(s.Name)
		ids = append(ids, id)
		sign, text := serverMark(&s)
		note := sign + " " + text + "  " + offers(&s)
		if s.LastError != "" {
			note += "  " + word(s.LastError)
		}
		d.items = append(d.items, item{title: name, note: note, do: func(m *model) tea.Cmd { return m.tools(id, name) }})
	}
	d.keys = func(m *model, at int, key string) (tea.Cmd, bool) {
		if !strings.Contains("s x l i j k", key) || key == " " {
			return nil, false
		}
		switch key {
		case "j":
			d.at++
			return nil, true
		case "k":
			d.at = max(0, d.at-1)
			return nil, true
		}
		if at < 0 {
			return nil, true
		}
		return m.serverKey(ids[at], key), true
	}
	m.open(d)
}

// serverKey does what a key of the list of servers says.
func (m *model) serverKey(id, key string) tea.Cmd {
	s := m.server(id)
	if s == nil {
		return m.say("The server is gone.")
	}
	name := word(s.Name)
	args := map[string]any{"connectionId": id}
	switch key {
	case "s":
		m.closeDialog()
		return callTool(m, name, "restart_external_mcp", args, done[toolFailed](name+" has started."))
	case "x":
		m.closeDialog()
		return callTool(m, name, "disconnect_external_mcp", args, done[toolFailed](name+" is stopped."))
	case "l":
		return m.serverLog(id, name)
	}
	u, err := url.Parse(s.AuthURL)
	if s.AuthURL == "" || err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return m.say(name + " does not ask you to log in.")
	}
	m.open(&page{title: "Log in at " + name, text: s.AuthURL, copyable: true})
	return m.say("Open this address in a browser. The server says here when you are logged in.")
}

func (m *model) server(id string) *hub.ServerRow {
	for i := range m.servers {
		if m.servers[i].ConnectionID == id {
			return &m.servers[i]
		}
	}
	return nil
}

type serverLog struct {
	toolFailed
	Log string `json:"log"`
}

func (m *model) serverLog(id, name string) tea.Cmd {
	return callTool(m, "log", "external_mcp_logs", map[string]any{"connectionId": id, "lines": 500},
		func(m *model, r serverLog) tea.Cmd {
			m.open(&page{title: "Log of " + name, text: cmp.Or(r.Log, "(empty)"), scroll: 1 << 30, copyable: true,
				again: func(m *model) tea.Cmd { return m.serverLog(id, name) }})
			return nil
		})
}

// tools shows what a server offers.
func (m *model) tools(id, name string) tea.Cmd {
	return call(m, "tools", "GET", serverPath(id), nil, func(m *model, r inspected) tea.Cmd {
		var b strings.Builder
		part := func(title string, all []offered) {
			if len(all) == 0 {
				return
			}
			fmt.Fprintf(&b, "%s\n", title)
			for _, t := range all {
				fmt.Fprintf(&b, "\n• %s", word(t.Remote))
				if t.Held != "" {
					fmt.Fprintf(&b, "  ▲ held back: %s", word(t.Held))
				}
				if d := word(t.Raw.Description); d != "" {
					fmt.Fprintf(&b, "\n  %s", cut(d, 300))
				}
			}
			b.WriteString("\n\n")
		}
		part("Tools", r.Tools)
		part("Prompts", r.Prompts)
		m.open(&page{title: name, text: cmp.Or(b.String(), "It offers nothing now.")})
		return nil
	})
}
