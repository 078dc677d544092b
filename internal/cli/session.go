package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/builtin"
	"sandlot/internal/cli/connection"
	"sandlot/internal/image"
	"sandlot/internal/terminal"
)

// target is the session in which a command runs. done removes it when it was created for
// the command alone.
type target struct {
	session string
	client  *client.Client
	done    func() error
}

// findSession returns the named session, or creates one for this command alone: on the server
// when it runs, else on a temporary server in this process.
func (p *program) findSession(ctx context.Context, session string) (*target, error) {
	if session != "" {
		return p.lastingSession(ctx, session)
	}
	api, err := p.client()
	if err != nil {
		return nil, err
	}
	done := func() error { return nil }
	if p.server == "" && !api.Alive(ctx) {
		if api, done, err = p.temporary(ctx, p.errorLog()); err != nil {
			return nil, err
		}
	}
	id, err := api.NewSession(ctx, protocol.SessionRequest{})
	if err != nil {
		return nil, errors.Join(err, done())
	}
	return &target{id, api, func() error {
		return errors.Join(api.JSON(context.WithoutCancel(ctx), "DELETE", client.SessionPath(id), nil, nil), done())
	}}, nil
}

// lastingSession returns a session that outlives the command; "new" creates one and prints its id.
func (p *program) lastingSession(ctx context.Context, session string) (*target, error) {
	api, done, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	if session == "new" {
		if session, err = api.NewSession(ctx, protocol.SessionRequest{}); err != nil {
			return nil, errors.Join(err, done())
		}
		fmt.Fprintln(p.err, "session", session)
	}
	return &target{session, api, done}, nil
}

const sessionHelp = `session to use: an id, "home", or "new" for one that stays (default: a new sandbox, removed afterwards)`

func (p *program) run() *cobra.Command {
	var session, language string
	c := &cobra.Command{
		Use: "run [flags] FILE|- [ARG...]", Short: "Run a program file in a sandbox", Args: cobra.MinimumNArgs(1),
		Long: "Run a file of Python, JavaScript or shell, or standard input (-), in a new sandbox or in a " +
			"session. The command exits with the exit code of the program.",
		Example: "  sandlot run hello.py\n  echo 'print(6*7)' | sandlot run -\n  sandlot run --language node - < " +
			"app.js\n  sandlot run --session home job.py arg",
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&session, "session", "", sessionHelp)
	c.Flags().StringVar(&language, "language", "",
		"python, node or bash (default: by the file's extension, else python)")
	c.RunE = func(c *cobra.Command, args []string) error {
		lang, err := languageOf(language, args[0])
		if err != nil {
			return err
		}
		code, stdin, err := p.source(args[0])
		if err != nil {
			return err
		}
		t, err := p.findSession(c.Context(), session)
		if err != nil {
			return err
		}
		file := fmt.Sprintf("/workspace/.sandlot-run-%d%s", os.Getpid(), lang.Extension)
		err = t.client.Upload(c.Context(), t.session, file, bytes.NewReader(code), int64(len(code)))
		if err != nil {
			return errors.Join(err, t.done())
		}
		argv := append(slices.Clone(lang.Command), file)
		code2, err := p.runIn(c.Context(), t, command.Command{Args: append(argv, args[1:]...)}, stdin, false)
		if session != "" {
			err = errors.Join(err, t.client.JSON(context.WithoutCancel(c.Context()), "DELETE",
				client.FilePath(t.session, file), nil, nil))
		}
		return exitWith(code2, errors.Join(err, t.done()))
	}
	return c
}

// languageOf returns the language of a file, by its name, unless language names it.
func languageOf(language, file string) (image.Language, error) {
	table := []image.Language{
		{Name: "python", Command: []string{"python3"}, Extension: ".py", Aliases: []string{"py"}},
		{Name: "node", Command: []string{"node"}, Extension: ".mjs", Aliases: []string{"javascript", "js"}},
		{Name: "bash", Command: []string{"bash"}, Extension: ".sh", Aliases: []string{"sh", "shell"}},
	}
	ext := path.Ext(file)
	for _, l := range table {
		if language == l.Name || slices.Contains(l.Aliases, language) ||
			language == "" && (ext == l.Extension || ext == ".js" && l.Name == "node" ||
				ext == ".cjs" && l.Name == "node") {
			if l.Name == "node" && ext != "" {
				l.Extension = ext
			}
			return l, nil
		}
	}
	if language == "" {
		return table[0], nil
	}
	return image.Language{}, usage{fmt.Errorf("--language %q must be python, node or bash", language)}
}

// source returns the code, and the standard input of the program that runs it.
func (p *program) source(file string) ([]byte, io.Reader, error) {
	if file == "-" {
		code, err := io.ReadAll(p.in)
		return code, bytes.NewReader(nil), err
	}
	code, err := os.ReadFile(file)
	return code, p.in, err
}

func (p *program) exec() *cobra.Command {
	var session, user string
	var tty bool
	var env []string
	c := &cobra.Command{
		Use: "exec [flags] -- COMMAND [ARG...]", Short: "Run a command in a sandbox", Args: cobra.MinimumNArgs(1),
		Long: "Run a command in a new sandbox or in a session, with your standard input, output and error. sandlot " +
			"exits with the exit code of the command. In a value of --env, ${secret:NAME} stands for a stored secret.",
		Example: "  sandlot exec -- uname -a\n  sandlot exec --session home -- ls -la\n  tar c . | sandlot exec " +
			"--session home -- tar x\n  sandlot exec --env 'KEY=${secret:KEY}' -- python3 job.py",
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&session, "session", "", sessionHelp)
	c.Flags().StringVarP(&user, "user", "u", "", "user of the sandbox to run the command as: a name or an id")
	c.Flags().BoolVarP(&tty, "tty", "t", false, "allocate a terminal for the command")
	c.Flags().StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	c.RunE = func(c *cobra.Command, args []string) error {
		vars, err := connection.Pairs("env", env)
		if err != nil {
			return usage{err}
		}
		t, err := p.findSession(c.Context(), session)
		if err != nil {
			return err
		}
		code, err := p.runIn(c.Context(), t, command.Command{Args: args, Env: vars}.As(user), p.in, tty)
		return exitWith(code, errors.Join(err, t.done()))
	}
	return c
}

func (p *program) shell() *cobra.Command {
	var session string
	c := &cobra.Command{
		Use: "shell [SESSION]", Short: "Open a shell in your home session, or in another one", Args: cobra.MaximumNArgs(1),
		Example: "  sandlot shell\n  sandlot shell SESSION_ID",
	}
	c.Flags().StringVar(&session, "session", "home", `session to use: an id, "home", or "new" for one that stays`)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			if c.Flags().Changed("session") {
				return usage{errors.New("the session is named twice: leave --session out")}
			}
			session = args[0]
		}
		t, err := p.lastingSession(c.Context(), session)
		if err != nil {
			return err
		}
		tty := p.isInteractive()
		argv := []string{"bash"}
		if tty {
			argv = append(argv, "-i")
		}
		code, err := p.runIn(c.Context(), t, command.Command{Args: argv}, p.in, tty)
		return exitWith(code, errors.Join(err, t.done()))
	}
	return c
}

// exitWith returns an error that makes this program exit with the code of the other one.
func exitWith(code int, err error) error {
	if err == nil && code != 0 {
		return exit(code & 0xff)
	}
	return err
}

// runIn runs a command in the target with the standard streams of this process.
func (p *program) runIn(ctx context.Context, t *target, cmd command.Command, in io.Reader, tty bool) (int, error) {
	tm := client.Terminal{Stdin: in, Stdout: p.out, Stderr: p.err, Resize: make(chan command.Size, 1)}
	if tty {
		restore, err := p.rawTerminal(&cmd, tm)
		if err != nil {
			return 0, err
		}
		defer restore()
	}
	return t.client.Exec(ctx, t.session, cmd, tm)
}

// rawTerminal puts this terminal into raw mode, for the command that runs in the sandbox, and
// forwards its size.
func (p *program) rawTerminal(cmd *command.Command, t client.Terminal) (restore func(), err error) {
	if !p.isInteractive() {
		return nil, usage{errors.New("standard input is not a terminal")}
	}
	fd := int(p.in.(*os.File).Fd())
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return nil, err
	}
	cmd.Terminal = &command.Size{Rows: rows, Cols: cols}
	env := map[string]string{"TERM": os.Getenv("TERM")}
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	resized := make(chan os.Signal, 1)
	stop := terminal.NotifyResize(resized)
	go func() {
		for range resized {
			if cols, rows, err := term.GetSize(fd); err == nil {
				select {
				case t.Resize <- command.Size{Rows: rows, Cols: cols}:
				default:
				}
			}
		}
	}()
	return func() {
		stop()
		close(resized)
		term.Restore(fd, old)
	}, nil
}

func (p *program) sessions() *cobra.Command {
	var labels []string
	c := &cobra.Command{Use: "sessions",
		Short: "List your sessions; 'new', 'fork', 'pause', 'resume', 'set' and 'stop' are for one", Args: cobra.NoArgs,
		Example: "  sandlot sessions\n  sandlot sessions --label team=web\n  sandlot sessions stop SESSION_ID"}
	c.Flags().StringArrayVar(&labels, "label", nil, "only those with a label: KEY=VALUE, or KEY")
	p.withJSON(c, func(c *cobra.Command, _ []string) error {
		var list builtin.SessionList
		path := "/v1/sessions"
		if len(labels) > 0 {
			path += "?" + url.Values{"label": labels}.Encode()
		}
		if err := p.list(c.Context(), path, &list); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(list.Sessions)
		}
		p.sayIfNone(len(list.Sessions), "There are no sessions.")
		for _, s := range list.Sessions {
			kind := ""
			if s.Home {
				kind = "home"
			}
			fmt.Fprintf(p.out, "%-27s %-5s %-11s %-8s %-8s last used %s%s\n", s.ID, kind, s.Status,
				s.Template, s.Flavor, s.Used, s.Line())
		}
		return nil
	})
	wrong := func(err error) error { return usage{err} }
	c.AddCommand(newSessionCommand(p.client, wrong, p.out), p.stopSession(), forkCommand(p.client, p.out))
	c.AddCommand(lifeCommands(p.client, wrong, p.out)...)
	alsoList(c)
	return c
}

func (p *program) stopSession() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "stop ID", Short: "End a session and remove its files", Args: cobra.MaximumNArgs(1),
		Long: "End a session: its processes end and its files are removed. A home session keeps its files, and the " +
			"next call starts it again. With --all the operator ends the sessions of all users.",
		Example: "  sandlot sessions stop home\n  sandlot sessions stop --all",
	}
	c.Flags().BoolVar(&all, "all", false, "end the sessions of all users, as operator")
	c.RunE = func(c *cobra.Command, args []string) error {
		if all == (len(args) == 1) {
			return usage{errors.New("name one session, or --all")}
		}
		client, done, err := p.connect(c.Context())
		if err != nil {
			return err
		}
		path := "/v1/sessions"
		if !all {
			path += "/" + args[0]
		} else if client, err = p.operator(); err != nil {
			return errors.Join(err, done())
		}
		return errors.Join(client.JSON(c.Context(), "DELETE", path, nil, nil), done())
	}
	return c
}

func (p *program) copyFile() *cobra.Command {
	return &cobra.Command{
		Use: "cp FROM TO", Short: "Copy a file to or from a session", Args: cobra.ExactArgs(2),
		Long: "Copy one file. A path in a session is SESSION:PATH, where SESSION is an id or \"home\", and a " +
			"relative PATH is below /workspace; - is standard input or output.",
		Example: "  sandlot cp data.csv home:/workspace/data.csv\n  sandlot cp home:out.png .\n  sandlot cp " +
			"home:log.txt - | less",
		RunE: func(c *cobra.Command, args []string) error {
			from, fromSession := splitPath(args[0])
			to, toSession := splitPath(args[1])
			if (fromSession == "") == (toSession == "") {
				return usage{errors.New("one of FROM and TO must be in a session: SESSION:PATH")}
			}
			t, err := p.lastingSession(c.Context(), fromSession+toSession)
			if err != nil {
				return err
			}
			if fromSession != "" {
				err = p.download(c.Context(), t.client, t.session, from, to)
			} else {
				err = p.upload(c.Context(), t.client, from, t.session, to)
			}
			return errors.Join(err, t.done())
		},
	}
}

// splitPath returns the path and the session of SESSION:PATH.
func splitPath(s string) (file, session string) {
	i := strings.IndexByte(s, ':')
	if i <= 0 || strings.ContainsAny(s[:i], "/.") {
		return s, ""
	}
	file = s[i+1:]
	if !path.IsAbs(file) {
		file = path.Join("/workspace", file)
	}
	return file, s[:i]
}

func (p *program) download(ctx context.Context, client *client.Client, session, from, to string) error {
	if to == "-" {
		_, err := client.Download(ctx, session, from, p.out)
		return err
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		to = filepath.Join(to, path.Base(from))
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".sandlot-cp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = client.Download(ctx, session, from, f)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), to)
}

func (p *program) upload(ctx context.Context, client *client.Client, from, session, to string) error {
	in := p.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
		if strings.HasSuffix(to, "/") || to == "/workspace" {
			to = path.Join(to, filepath.Base(from))
		}
	}
	f, regular := in.(*os.File)
	if regular {
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if st.Mode().IsRegular() {
			return client.Upload(ctx, session, to, f, st.Size())
		}
	}
	spool, err := os.CreateTemp("", "sandlot-cp-")
	if err != nil {
		return err
	}
	defer os.Remove(spool.Name())
	defer spool.Close()
	n, err := io.Copy(spool, in)
	if err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return client.Upload(ctx, session, to, spool, n)
}
