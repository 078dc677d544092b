package tui

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/client"
	"sandlot/internal/hub"
)

// toolFailed is how a tool says that it did not work.
type toolFailed struct {
	IsError bool `json:"isError"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
}

func (f toolFailed) err() error {
	if !f.IsError {
		return nil
	}
	var all []string
	for _, c := range f.Content {
		all = append(all, c.Text)
	}
	return errors.New(cmp.Or(strings.Join(all, "\n"), "it failed"))
}

// failing is the answer of a tool.
type failing interface{ err() error }

// tool calls one of Sandlot's tools.
func callTool[T failing](m *model, what, name string, args map[string]any, show func(*model, T) tea.Cmd) tea.Cmd {
	return call(m, what, "POST", "/v1/tools/"+url.PathEscape(name), args, func(m *model, r T) tea.Cmd {
		if err := r.err(); err != nil {
			return m.fail(what, err)
		}
		return show(m, r)
	})
}

// done says that something is done.
func done[T any](text string) func(*model, T) tea.Cmd {
	return func(m *model, _ T) tea.Cmd { return m.say(text) }
}

// shellOver is the end of a shell.
type shellOver struct {
	err  error
	said string // on its standard error
}

// bounded keeps the first bytes that are written.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	const most = 4 << 10
	b.Buffer.Write(p[:min(len(p), max(0, most-b.Len()))])
	return len(p), nil
}

// shell gives the terminal to a shell in the selected session. A program of its own runs it: the terminal is read by one
// program at a time.
func (m *model) shell() tea.Cmd {
	s := m.session()
	if s == nil || m.opts.Shell == nil {
		return m.say("Select a session first.")
	}
	cmd := m.opts.Shell(s.ID)
	said := &bounded{}
	cmd.Stderr = said
	return tea.ExecProcess(cmd, func(err error) tea.Msg { return shellOver{err, said.String()} })
}

func (m *model) onShellOver(s shellOver) tea.Cmd {
	exit, _ := errors.AsType[*exec.ExitError](s.err)
	switch {
	case s.err != nil && exit == nil:
		return m.fail("shell", s.err)
	case exit != nil && s.said != "": // else its last command has failed
		return m.fail("shell", errors.New(strings.TrimPrefix(s.said, "sandlot: ")))
	}
	return m.say("The shell has ended.")
}

// logs shows the log of the selected server, or what the background processes of the selected session print.
func (m *model) logs() tea.Cmd {
	r, ok := m.selected()
	switch {
	case !ok:
		return m.say("Select a session or a server first.")
	case r.server != nil:
		return m.serverLog(r.server.ConnectionID, r.title())
	}
	return m.processes(r.session.ID, r.title())
}

type processList struct {
	toolFailed
	Processes []struct {
		ID      string `json:"process_id"`
		Command string `json:"command"`
		Kind    string `json:"kind"`
		Status  string `json:"status"`
	} `json:"processes"`
}

func (m *model) processes(session, title string) tea.Cmd {
	return callTool(m, "logs", "list_processes", map[string]any{"session_id": session},
		func(m *model, r processList) tea.Cmd {
			d := &menu{title: "Output of programs in " + title, tabs: nil,
				empty: []string{"No background process runs in " + title + "."}}
			for _, p := range r.Processes {
				if p.Kind != "background" {
					continue
				}
				d.items = append(d.items, item{title: p.Command, note: p.Status, do: func(m *model) tea.Cmd {
					return m.processOutput(p.ID, p.Command)
				}})
			}
			m.open(d)
			return nil
		})
}

type processOutput struct {
	toolFailed
	Output string `json:"output"`
}

func (m *model) processOutput(id, command string) tea.Cmd {
	return callTool(m, "output", "read_process", map[string]any{"process_id": id},
		func(m *model, r processOutput) tea.Cmd {
			m.open(&page{title: cut(word(command), 60), text: cmp.Or(r.Output, "(nothing yet)"), scroll: 1 << 30, copyable: true,
				again: func(m *model) tea.Cmd { return m.processOutput(id, command) }})
			return nil
		})
}

type exposed struct {
	toolFailed
	URL string `json:"url"`
}

// openPort asks for a port of the selected session, exposes it, and shows its address.
func (m *model) openPort() tea.Cmd {
	s := m.session()
	if s == nil {
		return m.say("Select a session first.")
	}
	id, title := s.ID, sessionTitle(*s)
	m.open(&form{title: "Open a port of " + title, about: "The port gets a link, which works without a log-in.",
		fields: []field{{name: "port", label: "Port of a server in " + title, required: true, value: "8080"}},
		send: func(m *model, values map[string]string) tea.Cmd {
			port, err := strconv.Atoi(values["port"])
			if err != nil || port < 1 || port > 65535 {
				return m.say("A port is a number from 1 to 65535.")
			}
			m.closeDialog()
			return callTool(m, "port", "expose_port", map[string]any{"session_id": id, "port": port, "wait": 0},
				func(m *model, r exposed) tea.Cmd {
					m.open(&page{title: fmt.Sprintf("Port %d of %s", port, title), text: r.URL, copyable: true})
					return nil
				})
		}})
	return nil
}

// sessionItems are the commands about the selected session.
func (m *model) sessionItems() (all []item) {
	s := m.session()
	if s == nil {
		return nil
	}
	id, title := s.ID, sessionTitle(*s)
	path := client.SessionPath(id)
	add := func(name, note string, do func(*model) tea.Cmd) {
		all = append(all, item{title: name + " " + title, note: note, do: func(m *model) tea.Cmd {
			m.closeDialog()
			return do(m)
		}})
	}
	add("Shell in", "s", func(m *model) tea.Cmd { return m.shellIn(id) })
	add("Output of programs in", "l", func(m *model) tea.Cmd { return m.processes(id, title) })
	add("Open a port of", "o", func(m *model) tea.Cmd {
		m.list.selected = id
		return m.openPort()
	})
	if s.Status == "paused" {
		add("Resume", "it goes on where it was paused", func(m *model) tea.Cmd {
			return call(m, "resume", "POST", path+"/resume", nil, func(m *model, r hub.SessionState) tea.Cmd {
				return m.say(strings.TrimSpace(title + " is " + r.Status + ". " + r.Notice))
			})
		})
	} else {
		add("Pause", "it stands still until it is resumed", func(m *model) tea.Cmd {
			return call(m, "pause", "POST", path+"/pause", nil, done[hub.SessionState](title+" is paused."))
		})
	}
	add("Fork", "a live copy of it", func(m *model) tea.Cmd {
		return call(m, "fork", "POST", path+"/fork", map[string]any{"count": 1}, done[hub.Forked](title+" has a copy now."))
	})
	add("Snapshot of", "keeps its state until you remove it", func(m *model) tea.Cmd {
		m.open(snapshotForm(path, title))
		return nil
	})
	add("End", "its processes end, and its files go", func(m *model) tea.Cmd {
		m.open(confirmation("End "+title+"?", "Its processes end, and its files are removed. A home session keeps its files.",
			func(m *model) tea.Cmd {
				return call(m, "end", "DELETE", path, nil, done[struct{}](title+" has ended."))
			}))
		return nil
	})
	return all
}

func (m *model) shellIn(id string) tea.Cmd {
	m.list.selected = id
	return m.shell()
}

func snapshotForm(path, title string) *form {
	return &form{title: "Snapshot of " + title, fields: []field{{name: "name", label: "Name (empty: one is made up)"}},
		send: func(m *model, values map[string]string) tea.Cmd {
			m.closeDialog()
			return call(m, "snapshot", "POST", path+"/snapshots", values, func(m *model, r hub.SnapshotRow) tea.Cmd {
				return m.say("There is a snapshot " + word(r.Name) + " now.")
			})
		}}
}

// confirmation asks whether something is to be done. Enter alone does nothing.
func confirmation(title, text string, do func(*model) tea.Cmd) *menu {
	no := func(m *model) tea.Cmd {
		m.closeDialog()
		return nil
	}
	return &menu{title: title, hint: text, items: []item{{title: "No", do: no},
		{title: "Yes", do: func(m *model) tea.Cmd {
			m.closeDialog()
			return do(m)
		}}}}
}
