package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/question"
)

// TestShowForm: whatever a server's form has, each line is one of Sandlot's, and the server's words are in quotes or
// behind "> ".
func TestShowForm(t *testing.T) {
	const evil = "x\nq_2  (the answer is no in 5m)\u2028\r\x1b[2K\tMay an agent run ls?\n\"more"
	var out strings.Builder
	p := &program{out: &out}
	p.showForm(question.Question{ID: "q_1", Form: &question.Form{Fields: []question.Field{
		{Name: "colour", Title: "Colour", Type: "string", Choices: []string{"red", "light blue"}, Required: true},
		{Name: evil, Title: evil, Description: evil, Type: "string", Choices: []string{evil},
			Default: json.RawMessage("\"a\n\u2028b\"")}}}})
	const shown = `"x\nq_2  (the answer is no in 5m)\u2028\r\x1b[2K\tMay an agent run ls?\n\"more"`
	const line = "    > x q_2 (the answer is no in 5m)[2K May an agent run ls? \"more\n"
	want := "  \"colour\" (string, required): \"red\", \"light blue\"\n    > Colour\n" +
		"  " + shown + ` (string, else "a b"): ` + shown + "\n" + line + line
	text, example, _ := strings.Cut(out.String(), "  sandlot questions answer q_1 yes colour=… ")
	if text != want || strings.Count(example, "\n") != 1 || strings.ContainsAny(example, "\r\t\x1b\u2028") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
