// Package mcpcommand is the command mcp of sandboxes, by which shells and programs in any language find and call tools
// of third-party MCP servers. It owns how arguments are written in a shell, and how results are printed.
package mcpcommand

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sandlot/internal/agent/wire"
	"sandlot/internal/plural"
)

// Name is the name by which the agent's program is this command.
const Name = "mcp"

// Exit codes.
const (
	failed = 1 // the tool, its server or Sandlot says that it failed
	misuse = 2
)

const usage = `Finds and calls tools of MCP servers.

  mcp ls [SERVER]                       list servers, or the tools of one
  mcp search WORDS...                   find tools
  mcp help SERVER [TOOL]                what a server or tool is, and its arguments
  mcp call SERVER TOOL [NAME=VALUE]...  call a tool, and print its result

Values of "mcp call" are read by the type of the argument; NAME:=JSON gives any value, and NAME=VALUE again adds to a
list. Or give all arguments as JSON: --json '{...}', or --json - to read them from standard input.
  --timeout SECONDS   cancel the call after that
  --out FOLDER        where images and other files of a result go (default: a new folder in /tmp)
  --raw               print MCP's whole result as JSON

The exit code is 1 if the tool failed, with its words on standard error, and 2 for a wrong command line.
`

// command is one run of the command.
type command struct {
	dir    string // of the tool tree
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	index  []server
}

// misused is an error of the command line.
type misused string

func (m misused) Error() string { return string(m) }

func misuseOf(format string, args ...any) error { return misused(fmt.Sprintf(format, args...)) }

// Main runs the command, and returns its exit code.
func Main(args []string) int {
	return Run(wire.ToolsDir, args, os.Stdin, os.Stdout, os.Stderr)
}

// Run runs the command with the tool tree of a folder, and returns its exit code.
func Run(dir string, args []string, in io.Reader, out, errOut io.Writer) int {
	c := &command{dir: dir, in: in, out: out, errOut: errOut}
	err := c.run(args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "mcp:", strings.TrimSpace(err.Error()))
	if _, ok := errors.AsType[misused](err); ok {
		return misuse
	}
	return failed
}

func (c *command) run(args []string) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" && len(args) == 1 {
		_, err := io.WriteString(c.out, usage)
		return err
	}
	if err := c.readIndex(); err != nil {
		return err
	}
	switch name, rest := args[0], args[1:]; name {
	case "ls":
		return c.list(rest)
	case "search":
		return c.search(rest)
	case "help":
		return c.help(rest)
	case "call":
		return c.call(rest)
	default:
		return misuseOf("there is no command %q: it is ls, search, help or call (`mcp --help`)", name)
	}
}

// The index of the tree. toolfiles on the host writes it.
type (
	server struct {
		Module string `json:"module"`
		Name   string `json:"name"`
		Title  string `json:"title"`
		State  string `json:"state"`
		Off    bool   `json:"off"` // it is disconnected
		Tools  []tool `json:"tools"`
	}
	tool struct {
		Name   string     `json:"name"`
		Remote string     `json:"remote"`
		Client string     `json:"client"`
		Line   string     `json:"line"`
		Held   string     `json:"held"`
		Args   []argument `json:"args"`
		Open   bool       `json:"open"`
	}
	argument struct {
		Name     string `json:"n"`
		Python   string `json:"p"`
		Type     string `json:"t"`
		Items    string `json:"i"` // the type of an array's elements
		Required bool   `json:"r"`
	}
)

func (c *command) readIndex() error {
	text, err := os.ReadFile(filepath.Join(c.dir, "index.json"))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("no MCP server is connected: there are no tools to call")
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &c.index); err != nil {
		return fmt.Errorf("the tool tree cannot be read: %w", err)
	}
	for _, s := range c.index {
		for i := range s.Tools {
			t := &s.Tools[i]
			t.Remote = cmp.Or(t.Remote, t.Name)
			for j := range t.Args {
				t.Args[j].Type = cmp.Or(t.Args[j].Type, "string")
			}
		}
	}
	return nil
}

// signature shows the arguments of a tool: required ones first, others with "?".
func (t *tool) signature() string {
	var names []string
	for _, a := range t.Args {
		name := a.shown()
		if !a.Required {
			name += "?"
		}
		names = append(names, name)
	}
	if t.Open {
		names = append(names, "…")
	}
	return t.Name + "(" + strings.Join(names, ", ") + ")"
}

func (a *argument) shown() string {
	if a.Python != "" {
		return a.Python
	}
	return a.Name
}

// findServer finds a server by its name or that of its module.
func (c *command) findServer(name string) (*server, error) {
	var names []string
	for i := range c.index {
		if s := &c.index[i]; s.Name == name {
			return s, nil
		}
		if !c.index[i].Off {
			names = append(names, c.index[i].Module)
		}
	}
	for i := range c.index {
		if s := &c.index[i]; s.Module == name {
			return s, nil
		}
	}
	return nil, misuseOf("no server %q is connected. Connected are: %s", name, strings.Join(names, ", "))
}

// findTool finds a tool by its function's name, the server's own name, or the one that clients have for it.
func (s *server) findTool(name string) (*tool, error) {
	for _, of := range []func(*tool) string{func(t *tool) string { return t.Remote },
		func(t *tool) string { return t.Name }, func(t *tool) string { return t.Client }} {
		for i := range s.Tools {
			if of(&s.Tools[i]) == name {
				return &s.Tools[i], nil
			}
		}
	}
	if s.State != "" {
		return nil, misuseOf("%s cannot be called now, and has no tool %q that is known: %s", s.Module, name, s.State)
	}
	return nil, misuseOf("%s has no tool %q: `mcp ls %s` lists its tools", s.Module, name, s.Module)
}

func (c *command) list(args []string) error {
	if len(args) > 1 {
		return misuseOf("it is `mcp ls`, or `mcp ls SERVER`")
	}
	if len(args) == 0 {
		for _, s := range c.index {
			how := plural.Of(len(s.Tools), "tool", "tools")
			if s.State != "" {
				how = s.State
			}
			fmt.Fprintf(c.out, "%s (%s) %s\n", s.Module, how, s.Title)
		}
		return nil
	}
	s, err := c.findServer(args[0])
	if err != nil {
		return err
	}
	if s.State != "" {
		fmt.Fprintf(c.out, "It cannot be called now: %s\n", s.State)
	}
	for i := range s.Tools {
		c.printTool(&s.Tools[i], "")
	}
	return nil
}

func (c *command) printTool(t *tool, prefix string) {
	problem := ""
	if t.Held != "" {
		problem = "held back: " + t.Held
	}
	c.printProblem(t, prefix, problem)
}

// printProblem prints a tool, and why it cannot be called; empty: it can.
func (c *command) printProblem(t *tool, prefix, problem string) {
	if problem != "" {
		problem = " [" + problem + "]"
	}
	fmt.Fprintf(c.out, "%s%s%s %s\n", prefix, t.signature(), problem, t.Line)
}

// help prints the document of a server or a tool.
func (c *command) help(args []string) error {
	if len(args) > 2 {
		return misuseOf("it is `mcp help SERVER`, or `mcp help SERVER TOOL`")
	}
	s, err := c.findServer(args[0])
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(c.dir, s.Module, "README.md"))
	if errors.Is(err, os.ErrNotExist) && s.State != "" {
		return fmt.Errorf("%s cannot be called now: %s", s.Module, s.State)
	}
	if err != nil || len(args) == 1 {
		_, _ = c.out.Write(readme)
		return err
	}
	t, err := s.findTool(args[1])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(c.dir, s.Module, t.Name+".md"))
	_, _ = c.out.Write(text)
	return err
}
