package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/auth"
	"sandlot/internal/cli/plain"
	"sandlot/internal/hub"
	"sandlot/internal/question"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

func (p *program) questions() *cobra.Command {
	c := &cobra.Command{
		Use: "questions", Short: "Answer the questions of rules for which agents wait",
		Long: `Answer the questions of rules for which agents wait. A rule that asks, in sandlot.yaml under policy:,
asks through the agent's client where that can ask its user. Otherwise the call waits for an answer
here. You answer your own questions; an operator (without SANDLOT_TOKEN, on the server's machine)
answers everybody's.`,
		Example: `  sandlot questions
  sandlot questions answer q_4k2mzr7x9qwe yes
  sandlot questions answer q_4k2mzr7x9qwe no --always
  sandlot questions answer q_4k2mzr7x9qwe yes colour=red
  sandlot questions forget a_9xw2c5b8nmlk`,
		Args: cobra.NoArgs,
	}
	list := &cobra.Command{Use: "list", Short: "List the questions that wait, and the stored answers",
		Args: cobra.NoArgs}
	c.AddCommand(p.withJSON(list, p.listQuestions), p.answerQuestion(), p.forgetAnswer())
	return p.withJSON(c, p.listQuestions)
}

func (p *program) listQuestions(c *cobra.Command, _ []string) error {
	var list hub.QuestionList
	if err := p.list(c.Context(), "/v1/questions", &list); err != nil {
		return err
	}
	if p.asJSON {
		return p.json(list)
	}
	if len(list.Questions) == 0 {
		fmt.Fprintln(p.out, "No question waits for an answer.")
	}
	for _, q := range list.Questions {
		fmt.Fprintf(p.out, "%s  (the answer is no in %s)\n%s\n", q.ID, time.Until(q.Until).Round(time.Second),
			plain.Text(q.Text))
		p.showForm(q)
		fmt.Fprintln(p.out)
	}
	for i, a := range list.Answers {
		if i == 0 {
			fmt.Fprintln(p.out, "Answers that always count:")
		}
		answer := "no "
		if a.Allowed {
			answer = "yes"
		}
		who, _ := auth.FromID(a.Principal)
		fmt.Fprintf(p.out, "%s  %s  %s %s %s\n", a.ID, answer, who.Name, a.Operation,
			spec.ExactCommandLine([]string{a.Detail}))
	}
	return nil
}

// showForm prints the fields of a question, and how it is answered. The words of the server that asks are in quotes or
// behind "> ", on lines that Sandlot begins.
func (p *program) showForm(q question.Question) {
	if q.Form == nil || len(q.Form.Fields) == 0 {
		return
	}
	example := ""
	for _, f := range q.Form.Fields {
		fmt.Fprintf(p.out, "  %q (%s", f.Name, plain.Cell(f.Type))
		if f.Required {
			fmt.Fprint(p.out, ", required")
		}
		if f.Default != nil {
			fmt.Fprintf(p.out, ", else %s", plain.Cell(string(f.Default)))
		}
		fmt.Fprint(p.out, ")")
		for i, c := range f.Choices {
			fmt.Fprintf(p.out, "%s %q", map[bool]string{true: ":", false: ","}[i == 0], c)
		}
		fmt.Fprintln(p.out)
		for _, text := range []string{f.Title, f.Description} {
			if text != "" {
				fmt.Fprintf(p.out, "    > %s\n", plain.Cell(text))
			}
		}
		example += " " + spec.ExactCommandLine([]string{f.Name}) + "=…"
	}
	fmt.Fprintf(p.out, "  sandlot questions answer %s yes%s\n", q.ID, example)
}

func (p *program) answerQuestion() *cobra.Command {
	spans := map[question.Span]*bool{question.Once: new(bool), question.Session: new(bool), question.Always: new(bool)}
	c := &cobra.Command{Use: "answer ID yes|no [FIELD=VALUE…]", Short: "Answer a question", Args: cobra.MinimumNArgs(2)}
	f := c.Flags()
	f.BoolVar(spans[question.Once], "once", false, "the answer counts once (default)")
	f.BoolVar(spans[question.Session], "session", false, "the answer counts until the session ends")
	f.BoolVar(spans[question.Always], "always", false, "the answer always counts: see forget")
	c.MarkFlagsMutuallyExclusive("once", "session", "always")
	c.RunE = func(c *cobra.Command, args []string) error {
		if args[1] != "yes" && args[1] != "no" {
			return usage{errors.New("the answer is yes or no")}
		}
		a := hub.QuestionAnswer{Answer: args[1], For: question.Once}
		for _, arg := range args[2:] {
			name, value, ok := strings.Cut(arg, "=")
			if !ok {
				return usage{fmt.Errorf("%q must be FIELD=VALUE, a field of the question's form", arg)}
			}
			if a.Content == nil {
				a.Content = map[string]json.RawMessage{}
			}
			a.Content[name] = rawjson.Quote(value)
		}
		for span, set := range spans {
			if *set {
				a.For = span
			}
		}
		return p.ask(c.Context(), "POST", "/v1/questions/"+url.PathEscape(args[0]), a, nil)
	}
	return c
}

func (p *program) forgetAnswer() *cobra.Command {
	return &cobra.Command{Use: "forget ID", Short: "Remove a stored answer: the rule asks again",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c.Context(), "DELETE", "/v1/questions/"+url.PathEscape(args[0]), nil, nil)
		}}
}
