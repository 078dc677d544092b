package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/hub"
)

// sessionCommands are the commands about the life of one session.
type sessionCommands struct {
	connect func() (*client.Client, error)
	usage   func(error) error
	out     io.Writer
	asJSON  bool
}

// lifeCommands returns the commands `sandlot sessions pause`, `resume` and `set`, which print to out. usage marks an error of
// how the program was called.
func lifeCommands(connect func() (*client.Client, error), usage func(error) error, out io.Writer) []*cobra.Command {
	p := &sessionCommands{connect: connect, usage: usage, out: out}
	return []*cobra.Command{p.pause(), p.resume(), p.set()}
}

func (p *sessionCommands) withJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
	return c
}

// ask sends a request about a session, and prints its answer.
func (p *sessionCommands) ask(ctx context.Context, method, path string, in any, text func(hub.SessionState) string) error {
	api, err := p.connect()
	if err != nil {
		return err
	}
	var s hub.SessionState
	if err := api.JSON(ctx, method, path, in, &s); err != nil {
		return err
	}
	if p.asJSON {
		enc := json.NewEncoder(p.out)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	_, err = fmt.Fprintln(p.out, text(s))
	return err
}

func (p *sessionCommands) pause() *cobra.Command {
	return p.withJSON(&cobra.Command{
		Use: "pause ID", Short: "Pause a session: it stands still until it is resumed", Args: cobra.ExactArgs(1),
		Long: "Freeze a session, an id, a name or home, with its variables, processes and files. It needs no memory " +
			"then, and no call wakes it before it is resumed. An operator may pause the sessions of others.",
		Example: "  sandlot sessions pause home\n  sandlot sessions resume home",
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c.Context(), "POST", client.SessionPath(args[0])+"/pause", nil,
				func(s hub.SessionState) string { return s.ID + " is paused" })
		}})
}

func (p *sessionCommands) resume() *cobra.Command {
	return p.withJSON(&cobra.Command{
		Use: "resume ID", Short: "Resume a session that is paused", Args: cobra.ExactArgs(1),
		Long: "Let a session, an id, a name or home, go on where it was paused. What an operator has paused, an operator " +
			"alone resumes.",
		Example: "  sandlot sessions resume home",
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c.Context(), "POST", client.SessionPath(args[0])+"/resume", nil, func(s hub.SessionState) string {
				text := s.ID + " is " + s.Status
				if s.Notice != "" {
					text += ". " + s.Notice
				}
				return text
			})
		}})
}

func (p *sessionCommands) set() *cobra.Command {
	var name, endsAt, endsIn, onEnd string
	var labels []string
	c := p.withJSON(&cobra.Command{
		Use: "set ID", Short: "Change a session's name, labels or end", Args: cobra.ExactArgs(1),
		Long: "Change the settings of a session (an id, a name or home). What you do not name stays.",
		Example: "  sandlot sessions set SESSION_ID --name build --label team=web\n  sandlot sessions set build --ends-in " +
			"2h --on-end pause\n  sandlot sessions set build --ends-at never --label team- --name ''"})
	c.Flags().StringVar(&name, "name", "", "a name that stands for its id; empty: none")
	c.Flags().StringArrayVar(&labels, "label", nil, "label: KEY=VALUE, or KEY- to remove it")
	addEnd(c, &endsAt, &endsIn, &onEnd)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		change := hub.SessionUpdate{}
		for flag, field := range map[string]**string{"name": &change.Name, "ends-at": &change.EndsAt,
			"ends-in": &change.EndsIn, "on-end": &change.OnEnd} {
			if f := c.Flags().Lookup(flag); f.Changed {
				value := f.Value.String()
				*field = &value
			}
		}
		if change.Labels, err = changedLabels(labels); err != nil {
			return p.usage(err)
		}
		if change.Empty() {
			return p.usage(errors.New("say what to change: --name, --label, --ends-at, --ends-in or --on-end"))
		}
		return p.ask(c.Context(), "PATCH", client.SessionPath(args[0]), change,
			func(s hub.SessionState) string { return s.ID + " is changed" })
	}
	return c
}

// addEnd adds the flags about the end of a session's life.
func addEnd(c *cobra.Command, endsAt, endsIn, onEnd *string) {
	c.Flags().StringVar(endsAt, "ends-at", "", "end of its life: a time such as 2026-01-31T12:00:00Z, or never")
	c.Flags().StringVar(endsIn, "ends-in", "", "end of its life, from now: 90s, 30m, 12h or 7d")
	c.Flags().StringVar(onEnd, "on-end", "", "what happens then: stop (default) or pause")
}

// changedLabels parses labels to set, KEY=VALUE, and to remove, KEY-.
func changedLabels(texts []string) (all map[string]*string, err error) {
	for _, text := range texts {
		if all == nil {
			all = map[string]*string{}
		}
		key, value, sets := strings.Cut(text, "=")
		removed, removes := strings.CutSuffix(text, "-")
		switch {
		case sets:
			all[key] = &value
		case removes:
			all[removed] = nil
		default:
			return nil, fmt.Errorf("--label %q has to be KEY=VALUE, or KEY- to remove it", text)
		}
	}
	return all, nil
}

// newLabels parses the labels of a new session, KEY=VALUE.
func newLabels(texts []string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--label %q has to be KEY=VALUE", text)
		}
		all[key] = value
	}
	return all, nil
}
