package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// connectOperator returns a client for the operations of operators. Done ends what it has started.
type connectOperator func(context.Context) (c *client.Client, done func() error, err error)

// templateCommands are the commands of `sandlot template`.
type templateCommands struct {
	connect connectOperator
	out     io.Writer
}

// templateCommand returns the command `sandlot template`, which prints to out.
func templateCommand(connect connectOperator, out io.Writer) *cobra.Command {
	p := &templateCommands{connect, out}
	c := &cobra.Command{
		Use: "template", Short: "List and build what sandboxes are made of",
		Long: `Templates say what sandboxes are made of: the programs of this machine (host), an unpacked root
file system, or an image with packages and files of its own. "sandlot template build" makes templates of
images ready, which the server also does by itself for those of the settings file. The ready-made templates
python, node, base and browser are built only on request; until then host provides the names of the first
three.`,
		Example: "  sandlot template list\n  sandlot template build python",
	}
	c.AddCommand(p.list(), p.buildCommand())
	return c
}

func (p *templateCommands) list() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "list", Short: "List the templates and whether they are ready", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, done, err := p.connect(c.Context())
		if err != nil {
			return err
		}
		list, err := client.Templates(c.Context())
		if err := errors.Join(err, done()); err != nil {
			return err
		}
		if asJSON {
			enc := json.NewEncoder(p.out)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(list)
		}
		for _, t := range list {
			fmt.Fprintln(p.out, describe(t))
			if t.Problem != "" {
				fmt.Fprintln(p.out, "  "+strings.ReplaceAll(printable(t.Problem), "\n", "\n  "))
			}
		}
		return nil
	}
	return c
}

// maxText bounds a text of the server that is printed, in bytes.
const maxText = 64 << 10

func printable(text string) string { return fault.Printable(text, maxText) }

// describe returns a line about a template.
func describe(t hub.Template) string {
	words := []string{string(t.State)}
	if t.Usable && t.State != hub.TemplateReady {
		words = append(words, "an earlier build serves")
	}
	if t.Step != "" {
		words = append(words, printable(t.Step))
	}
	if t.Source != "" {
		words = append(words, "from "+t.Source)
	}
	if len(t.Languages) > 0 {
		words = append(words, strings.Join(t.Languages, " "))
	}
	if t.Runtime != "" {
		words = append(words, "runtime "+t.Runtime)
	}
	return fmt.Sprintf("%-16s %s", t.Name, strings.Join(words, "; "))
}

func (p *templateCommands) buildCommand() *cobra.Command {
	return &cobra.Command{
		Use: "build [NAME…]", Short: "Build templates: get their images and install their packages",
		Long: `Build templates of images: get the image, install packages and files in a sandbox of it, and find its
languages. Without a name all of the settings file are built. What was built of the same image and the same
packages before is used again. The command shows the progress, and waits. A template that cannot be built says
why, and the others go on.`,
		Example: "  sandlot template build\n  sandlot template build python node",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, names []string) error {
			client, done, err := p.connect(c.Context())
			if err != nil {
				return err
			}
			return errors.Join(p.build(c.Context(), client, names), done())
		},
	}
}

// build asks for templates to be built, and shows the progress until they are ready or have failed.
func (p *templateCommands) build(ctx context.Context, c *client.Client, names []string) error {
	if len(names) == 0 {
		list, err := c.Templates(ctx)
		if err != nil {
			return err
		}
		for _, t := range list {
			if strings.HasPrefix(t.Source, "image ") && !t.ReadyMade {
				names = append(names, t.Name)
			}
		}
	}
	if len(names) == 0 {
		fmt.Fprintln(p.out, "No template of the settings file is made of an image: there is nothing to build.")
		return nil
	}
	failed, said := []string{}, map[string]string{}
	for _, name := range names {
		requested, err := c.BuildTemplate(ctx, name)
		if err != nil {
			return err
		}
		p.sayProgress(requested, said)
	}
	err := c.FollowTemplates(ctx, func(change hub.TemplatesChange) (done bool, err error) {
		list := []hub.Template{}
		if change.Templates != nil {
			list = *change.Templates
		} else if change.Template != nil {
			list = append(list, *change.Template)
		}
		for _, t := range list {
			if !slices.Contains(names, t.Name) {
				continue
			}
			p.sayProgress(t, said)
			if t.State == hub.TemplateReady || t.State == hub.TemplateFailed {
				names = slices.DeleteFunc(names, func(name string) bool { return name == t.Name })
			}
			if t.State == hub.TemplateFailed {
				failed = append(failed, t.Name)
			}
		}
		return len(names) == 0, nil
	})
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("the server has stopped before they were built: %s", strings.Join(names, ", "))
	}
	if len(failed) > 0 {
		return fmt.Errorf("could not be built: %s", strings.Join(failed, ", "))
	}
	return nil
}

// sayProgress prints how far a template is, if that has changed.
func (p *templateCommands) sayProgress(t hub.Template, said map[string]string) {
	text := t.Step
	switch t.State {
	case hub.TemplateReady:
		text = "ready: " + strings.Join(t.Languages, " ")
	case hub.TemplateFailed:
		text = "failed: " + t.Problem
	}
	if text = printable(text); text != "" && said[t.Name] != text {
		said[t.Name] = text
		fmt.Fprintf(p.out, "%s: %s\n", t.Name, strings.ReplaceAll(text, "\n", "\n  "))
	}
}
