// Reference writes the reference of the HTTP API into docs/guide/api.md, from the OpenAPI document: the table of
// routes, and for each route its parameters, bodies, answers and errors. It stands between lines that begin and end
// what is generated; the rest of the file is written by hand.
//
//	go run ./test/reference
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"sandlot/internal/api"
)

const guide = "docs/guide/api.md"

func main() {
	if err := run(guide); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	updated, err := update(string(old))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(updated), 0o644)
}

// update replaces what is generated in the text of the guide.
func update(text string) (string, error) {
	d := newDocument(api.Document("", nil))
	for part, generated := range map[string]string{"routes": d.table(), "reference": d.reference()} {
		begin := "<!-- " + part + ": made by `go run ./test/reference` -->\n"
		lines := regexp.MustCompile(`(?s)` + regexp.QuoteMeta(begin) + `.*?<!-- end of ` + part + ` -->\n`)
		if len(lines.FindAllString(text, -1)) != 1 {
			return "", fmt.Errorf("%s has not one part between %q and its end", guide, strings.TrimSpace(begin))
		}
		text = lines.ReplaceAllLiteralString(text, begin+"\n"+generated+"\n<!-- end of "+part+" -->\n")
	}
	return text, nil
}
