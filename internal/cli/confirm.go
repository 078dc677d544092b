package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// errNotConfirmed is the error of a command that the user did not confirm.
var errNotConfirmed = errors.New("nothing was written")

// confirm asks a question on the terminal; nil: the user answered yes.
func (p *program) confirm(ctx context.Context, question string) error {
	if !p.isInteractive() {
		return fmt.Errorf("%w: there is no terminal to ask on; look at what is shown above, and give --yes",
			errNotConfirmed)
	}
	fmt.Fprint(p.err, question, " [y/N] ")
	answers := make(chan string, 1)
	go func() { // ends with the program, since a read of a terminal cannot be interrupted
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errNotConfirmed
}

// isInteractive reports whether standard input is a terminal, on which the user can answer.
func (p *program) isInteractive() bool {
	in, ok := p.in.(*os.File)
	return ok && term.IsTerminal(int(in.Fd()))
}

// askLine asks for a line on the terminal.
func (p *program) askLine(ctx context.Context, question string) (string, error) {
	fmt.Fprint(p.err, question)
	answers := make(chan string, 1)
	go func() { // ends with the program, since a read of a terminal cannot be interrupted
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		fmt.Fprintln(p.err)
		return "", ctx.Err()
	}
}
