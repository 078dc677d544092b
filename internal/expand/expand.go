// Package expand expands values of the operator's settings: it replaces references to variables by
// their values, and commands by their output. It never expands the result again, and no error contains
// any part of a value or an output.
package expand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	shell "mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// commandTimeout is the time limit of a command; tests set a shorter one.
var commandTimeout = 10 * time.Second

// maxOutput is the maximum size of a command's output, in bytes.
const maxOutput = 64 << 10

// Options say what a text may refer to.
type Options struct {
	Env map[string]string // the variables, and the whole environment of commands
	// Allow is called for each variable that the text refers to, used or not. The expansion fails if it returns an
	// error. nil: all variables may be used.
	Allow func(name string) error
	// Commands is set if $(command) runs on this machine; else it is an error.
	Commands bool
	// Folder is what $(pwd), $PWD and ${PWD} stand for, where the text is for a program elsewhere. A command has the
	// folder of this process nevertheless. Empty: they mean the folder of this process, as in a shell.
	Folder string
}

// Text expands $VAR, ${VAR}, ${VAR:-word}, ${VAR:+word}, ${VAR:?message} and
// $(command), as a shell does in a here-document: there is no word splitting and no globbing, quotes
// stay, a backslash escapes $ and \, and an unset variable is empty. Commands run with
// /bin/sh on this machine: with Options.Commands, text must be the operator's own.
//
// The caller adds to an error where text is from.
func Text(ctx context.Context, text string, o Options) (string, error) {
	env := envList(o.Env)
	if o.Folder != "" {
		o.Env = maps.Clone(o.Env)
		if o.Env == nil {
			o.Env = map[string]string{}
		}
		o.Env["PWD"] = o.Folder
	}
	return expandText(text, o, func(w io.Writer, c *syntax.CmdSubst) error {
		if o.Folder != "" && isPWD(c) {
			_, err := io.WriteString(w, o.Folder)
			return err
		}
		return run(ctx, w, text[c.Left.Offset()+2:c.Right.Offset()], env)
	})
}

// Value is Text for a text of the operator's own, which may use all of env and run commands.
func Value(ctx context.Context, text string, env map[string]string) (string, error) {
	return Text(ctx, text, Options{Env: env, Commands: true})
}

// isPWD reports whether a command is pwd alone.
func isPWD(c *syntax.CmdSubst) bool {
	if len(c.Stmts) != 1 {
		return false
	}
	stmt := c.Stmts[0]
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok || len(stmt.Redirs) > 0 || len(call.Assigns) > 0 || stmt.Negated || stmt.Background || stmt.Coprocess {
		return false
	}
	var words []string
	for _, w := range call.Args {
		words = append(words, w.Lit())
	}
	return slices.Contains([]string{"pwd", "pwd -P", "pwd -L", "/bin/pwd", "/usr/bin/pwd"}, strings.Join(words, " "))
}

// expandText expands a text. Command writes the output of a command.
func expandText(text string, o Options, command func(io.Writer, *syntax.CmdSubst) error) (string, error) {
	if !strings.ContainsAny(text, "$`\\") {
		return text, nil
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) || strings.Contains(text, "\r\n") {
		return "", errors.New("a text with $ must be UTF-8, without NUL and with no carriage return at the end of a " +
			"line")
	}
	word, err := syntax.NewParser().Document(strings.NewReader(text))
	if err != nil {
		return "", errors.New("it is not complete: each ${ needs its } and a name, each $( its ); write \\$ for a $ " +
			"that stands for itself")
	}
	if err := check(word); err != nil {
		return "", err
	}
	if err := checkAllowed(word, o); err != nil {
		return "", err
	}
	removeUnused(word, o.Env)
	out, err := shell.Document(&shell.Config{Env: shell.ListEnviron(envList(o.Env)...), CmdSubst: command}, word)
	return out, safeError(err)
}

func envList(env map[string]string) []string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// check returns an error for shell syntax that the settings do not support.
func check(word *syntax.Word) (err error) {
	syntax.Walk(word, func(n syntax.Node) bool {
		var nodeErr error
		switch n := n.(type) {
		case *syntax.Lit:
			nodeErr = checkDollars(n.Value)
		case *syntax.ParamExp:
			nodeErr = checkParam(n)
		case *syntax.CmdSubst:
			if n.Backquotes {
				nodeErr = errors.New("a command is written $(command), and \\` stands for a backquote")
			}
		case *syntax.ArithmExp:
			nodeErr = errors.New("$((…)) and $[…] are not known here; write \\$ for a $ that stands for itself")
		}
		if err == nil {
			err = nodeErr
		}
		// The shell checks the command itself.
		_, command := n.(*syntax.CmdSubst)
		return !command && nodeErr == nil
	})
	return err
}

// checkAllowed returns an error for commands and variables that the options do not allow.
func checkAllowed(word *syntax.Word, o Options) (err error) {
	refused := errors.New("only sandlot.yaml may have $(command): no other file runs a program on this machine, " +
		"unless the operator sets mcp_files_commands: true; write \\$ for a $ that stands for itself")
	syntax.Walk(word, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst:
			if !o.Commands && (o.Folder == "" || !isPWD(n)) {
				err = refused
			}
			return false // the variables in a command are its own
		case *syntax.ProcSubst:
			if !o.Commands {
				err = refused
			}
		case *syntax.ParamExp:
			own := o.Folder != "" && n.Param != nil && n.Param.Value == "PWD"
			if err == nil && n.Param != nil && o.Allow != nil && !own {
				err = o.Allow(n.Param.Value)
			}
		}
		return err == nil
	})
	return err
}

func checkDollars(text string) error {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '$':
			return errors.New("a $ stands alone; write \\$ for one that stands for itself")
		}
	}
	return nil
}

var operators = []syntax.ParExpOperator{
	syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AlternateUnset, syntax.AlternateUnsetOrNull,
	syntax.ErrorUnset, syntax.ErrorUnsetOrNull,
}

func checkParam(p *syntax.ParamExp) error {
	unsupported := p.Excl || p.Length || p.Width || p.IsSet || p.NestedParam != nil || p.Index != nil ||
		p.Modifiers != nil ||
		p.Slice != nil || p.Repl != nil || p.Names != 0 || p.Flags != nil
	if unsupported || p.Exp != nil && !slices.Contains(operators, p.Exp.Op) || p.Param == nil ||
		!syntax.ValidName(p.Param.Value) {
		return errors.New("only $VAR, ${VAR}, ${VAR:-word}, ${VAR:+word}, ${VAR:?message} and $(command) are known; " +
			"write \\$ for a $ that stands for itself")
	}
	return nil
}

// removeUnused removes default and alternate words that are not used: the library expands them, and so runs
// their commands, before it checks whether they are needed.
func removeUnused(word *syntax.Word, env map[string]string) {
	syntax.Walk(word, func(n syntax.Node) bool {
		p, ok := n.(*syntax.ParamExp)
		if !ok || p.Exp == nil {
			_, command := n.(*syntax.CmdSubst)
			return !command
		}
		value, set := env[p.Param.Value]
		switch p.Exp.Op {
		case syntax.DefaultUnsetOrNull, syntax.ErrorUnsetOrNull, syntax.AlternateUnsetOrNull:
			set = value != ""
		}
		alternate := p.Exp.Op == syntax.AlternateUnset || p.Exp.Op == syntax.AlternateUnsetOrNull
		switch {
		case alternate && !set:
			p.Exp.Word = nil
		case !alternate && set:
			p.Exp = nil
		}
		return true
	})
}

// safeError returns err without the values that it may contain.
func safeError(err error) error {
	var unset shell.UnsetParameterError
	var failed commandError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unset):
		// The message is only shown if it is a literal: after an expansion, it could contain a value.
		message := ""
		if p := unset.Node; p != nil && p.Exp != nil && p.Exp.Word != nil && p.Exp.Word.Lit() != "" {
			message = ": " + p.Exp.Word.Lit()
		}
		return fmt.Errorf("the variable %s is not set%s", unset.Node.Param.Value, message)
	case errors.As(err, &failed):
		return failed
	}
	return errors.New("it cannot be expanded")
}

// commandError is an error of a command, which never contains a value or output.
type commandError string

func (f commandError) Error() string { return string(f) }

// run runs a command and writes its output to w. Its standard error is discarded, not logged: it may
// contain the secret that the command fetches.
func run(ctx context.Context, w io.Writer, command string, env []string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out := &limitedWriter{w: w, remaining: maxOutput}
	c, err := shellCommand(ctx, command)
	if err != nil {
		return err
	}
	c.Env, c.Stdout, c.WaitDelay = env, out, time.Second
	err = c.Run()
	var exit *exec.ExitError
	switch {
	case out.exceeded:
		return commandError(fmt.Sprintf("a command in $(…) printed more than %d KiB", maxOutput>>10))
	case ctx.Err() != nil:
		return commandError(fmt.Sprintf("a command in $(…) did not end within %s", commandTimeout))
	case errors.Is(err, exec.ErrWaitDelay):
		return commandError("a command in $(…) left a program behind that keeps its output open")
	case errors.As(err, &exit):
		return commandError(fmt.Sprintf("a command in $(…) failed (%s); run it by hand to see why", exit))
	case err != nil:
		return commandError("a command in $(…) cannot be started with /bin/sh")
	case out.hasNUL:
		return commandError("a command in $(…) printed a NUL")
	}
	return nil
}

// limitedWriter is a writer that fails after left bytes, so that the command ends.
type limitedWriter struct {
	w                io.Writer
	remaining        int
	exceeded, hasNUL bool
}

func (b *limitedWriter) Write(p []byte) (int, error) {
	if b.remaining -= len(p); b.remaining < 0 {
		b.exceeded = true
		return 0, io.ErrShortWrite
	}
	b.hasNUL = b.hasNUL || slices.Contains(p, 0)
	return b.w.Write(p)
}
