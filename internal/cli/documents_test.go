package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestCommandsOfDocuments: the commands that documents show are there, and have the
// flags that they are shown with.
func TestCommandsOfDocuments(t *testing.T) {
	var docs []string
	for _, root := range []string{"../../README.md", "../../CONTRIBUTING.md", "../../docs"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
				docs = append(docs, path)
			}
			return nil
		})
	}
	// A command stands between back quotes, or at the beginning of a line of a block.
	shown := regexp.MustCompile("(?m)(?:`|^(?:\\$ )?)(?:sudo (?:-u [a-z]+ )?)?(?:[\\w./]*/)?sandlot ([^`\n]+)")
	found := 0
	for _, doc := range docs {
		data, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shown.FindAllStringSubmatch(string(data), -1) {
			if isCommand(m[1]) {
				found++
				checkCommand(t, strings.TrimPrefix(doc, "../../"), m[1])
			}
		}
	}
	if len(docs) < 20 || found < 100 {
		t.Errorf("only %d commands in %d documents were found", found, len(docs))
	}
}

// isCommand tells a command from a line of other text that begins with our name.
func isCommand(line string) bool {
	return regexp.MustCompile(`^(-|[a-z]+( |$))`).MatchString(line)
}

// checkCommand checks one line, without the program's name.
func checkCommand(t *testing.T, doc, line string) {
	t.Helper()
	root := new(program).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	c := root
	value := false // the word is the value of the flag before it
	for _, word := range strings.Fields(line) {
		if word == "--" || strings.ContainsAny(word, "|&;<>#") || strings.Contains(word, "$(") {
			return // what follows is another program's
		}
		if value {
			value = false
			continue
		}
		if name, ok := strings.CutPrefix(strings.Trim(word, "[](),"), "--"); ok {
			name, _, given := strings.Cut(name, "=")
			flag := c.Flag(name)
			if flag == nil && name != "help" {
				t.Errorf("%s: `sandlot %s`: there is no flag --%s", doc, line, name)
			}
			value = flag != nil && flag.NoOptDefVal == "" && !given
			continue
		}
		if sub := child(c, word); sub != nil {
			c = sub
		} else if c == root && !strings.HasPrefix(word, "-") || c.HasSubCommands() && !c.Runnable() {
			t.Errorf("%s: `sandlot %s`: there is no command %s", doc, line, word)
			return
		}
	}
}

func child(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name {
			return sub
		}
	}
	return nil
}
