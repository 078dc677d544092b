// Package expand expands values of the operator's settings: it replaces references to
// variables, and commands, by their values and output. It never expands what it has put
// in, and no error has any part of it.
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
	"syscall"
	"time"
	"unicode/utf8"

	shell "mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// commandTimeout is how long a command may take; tests have less.
var commandTimeout = 10 * time.Second

// maxOutput is what a command may print, in bytes.
const maxOutput = 64 << 10

// Value expands $VAR, ${VAR}, ${VAR:-word}, ${VAR:+word}, ${VAR:?message} and
// $(command), as a shell does in a here-document: nothing is split and no file
// names are looked for, quotes stay, a backslash takes the meaning from $ and \,
// and a variable that is not set is empty. Commands run with /bin/sh on this
// machine, with env and nothing else: text must be the operator's own.
//
// An error says what is wrong without any part of a value; the caller says where.
func Value(ctx context.Context, text string, env map[string]string) (string, error) {
	list := pairs(env)
	return expanded(text, env, nil, func(w io.Writer, c *syntax.CmdSubst) error {
		return run(ctx, w, text[c.Left.Offset()+2:c.Right.Offset()], list)
	})
}

// Variables does the same for a text that may be another's: no command ever runs,
// and may says of each variable that the text names, used or not, why it is not
// given away, or returns nil.
func Variables(text string, env map[string]string, may func(name string) error) (string, error) {
	return expanded(text, env, may, nil)
}

// expanded is what a text stands for. Without command it may have none.
func expanded(text string, env map[string]string, may func(string) error,
	command func(io.Writer, *syntax.CmdSubst) error) (string, error) {
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
	if command == nil {
		if err := harmless(word, may); err != nil {
			return "", err
		}
	}
	prune(word, env)
	out, err := shell.Document(&shell.Config{Env: shell.ListEnviron(pairs(env)...), CmdSubst: command}, word)
	return out, tell(err)
}

func pairs(env map[string]string) []string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// check refuses what a shell would take and the settings do not promise.
func check(word *syntax.Word) (err error) {
	syntax.Walk(word, func(n syntax.Node) bool {
		var wrong error
		switch n := n.(type) {
		case *syntax.Lit:
			wrong = lone(n.Value)
		case *syntax.ParamExp:
			wrong = param(n)
		case *syntax.CmdSubst:
			if n.Backquotes {
				wrong = errors.New("a command is written $(command), and \\` stands for a backquote")
			}
		case *syntax.ArithmExp:
			wrong = errors.New("$((…)) and $[…] are not known here; write \\$ for a $ that stands for itself")
		}
		if err == nil {
			err = wrong
		}
		// What stands in a command is the shell's.
		_, command := n.(*syntax.CmdSubst)
		return !command && wrong == nil
	})
	return err
}

// harmless refuses commands, and the variables that are not given away.
func harmless(word *syntax.Word, may func(string) error) (err error) {
	syntax.Walk(word, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst:
			err = errors.New("$(command) is for sandlot.yaml alone: no other file runs a program on this machine; " +
				"write \\$ for a $ that stands for itself")
		case *syntax.ParamExp:
			if err == nil && n.Param != nil {
				err = may(n.Param.Value)
			}
		}
		return err == nil
	})
	return err
}

func lone(text string) error {
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

func param(p *syntax.ParamExp) error {
	other := p.Excl || p.Length || p.Width || p.IsSet || p.NestedParam != nil || p.Index != nil || p.Modifiers != nil ||
		p.Slice != nil || p.Repl != nil || p.Names != 0 || p.Flags != nil
	if other || p.Exp != nil && !slices.Contains(operators, p.Exp.Op) || p.Param == nil ||
		!syntax.ValidName(p.Param.Value) {
		return errors.New("only $VAR, ${VAR}, ${VAR:-word}, ${VAR:+word}, ${VAR:?message} and $(command) are known; " +
			"write \\$ for a $ that stands for itself")
	}
	return nil
}

// prune takes out the words that are not needed: the library expands them, and
// so runs their commands, before it looks whether they are.
func prune(word *syntax.Word, env map[string]string) {
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

// tell says what went wrong in words that hold no value.
func tell(err error) error {
	var unset shell.UnsetParameterError
	var ours failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unset):
		// The message is shown as it is written, or not at all: put together, it
		// may hold a value.
		message := ""
		if p := unset.Node; p != nil && p.Exp != nil && p.Exp.Word != nil && p.Exp.Word.Lit() != "" {
			message = ": " + p.Exp.Word.Lit()
		}
		return fmt.Errorf("the variable %s is not set%s", unset.Node.Param.Value, message)
	case errors.As(err, &ours):
		return ours
	}
	return errors.New("it cannot be expanded")
}

// failure is an error of a command.
type failure string

func (f failure) Error() string { return string(f) }

// run writes what the command prints. What it says on standard error is not for
// any log: it may tell the secret that it was to fetch.
func run(ctx context.Context, w io.Writer, command string, env []string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out := &bounded{w: w, left: maxOutput}
	c := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	c.Env, c.Stdout, c.WaitDelay = env, out, time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case out.full:
		return failure(fmt.Sprintf("a command in $(…) printed more than %d KiB", maxOutput>>10))
	case ctx.Err() != nil:
		return failure(fmt.Sprintf("a command in $(…) did not end within %s", commandTimeout))
	case errors.Is(err, exec.ErrWaitDelay):
		return failure("a command in $(…) left a program behind that keeps its output open")
	case errors.As(err, &exit):
		return failure(fmt.Sprintf("a command in $(…) failed (%s); run it by hand to see why", exit))
	case err != nil:
		return failure("a command in $(…) cannot be started with /bin/sh")
	case out.binary:
		return failure("a command in $(…) printed a NUL")
	}
	return nil
}

// bounded ends a command that prints too much.
type bounded struct {
	w            io.Writer
	left         int
	full, binary bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		b.full = true
		return 0, io.ErrShortWrite
	}
	b.binary = b.binary || slices.Contains(p, 0)
	return b.w.Write(p)
}
