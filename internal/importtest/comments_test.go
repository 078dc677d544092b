package importtest

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// properNames are words with a capital in the middle that are no names in this code.
var properNames = strings.Fields("CentOS FreeBSD GitHub gRPC IPv4 IPv6 JavaScript macOS OpenELEC OpenSSL openSUSE " +
	"PyPI SQLite TypeScript WriterTo cgroupsPath")

// A comment mentions only names that exist: who renames something renames it in the comments too. A word with
// a capital in its middle counts as a name.
func TestCommentsNameWhatExists(t *testing.T) {
	type mention struct {
		at   token.Position
		word string
	}
	var mentions []mention
	exist := map[string]bool{}
	for _, name := range properNames {
		exist[name] = true
	}
	word, mixed := regexp.MustCompile(`\w+`), regexp.MustCompile(`^[A-Za-z][a-z0-9]+[A-Z]\w*$`)
	fset := token.NewFileSet()
	for _, name := range files(t) {
		switch filepath.Ext(name) {
		case ".go", ".py", ".mjs", ".js", ".cjs", ".sh", ".proto":
		default:
			continue
		}
		data, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) != ".go" {
			for _, w := range word.FindAllString(string(data), -1) {
				exist[w] = true
			}
			continue
		}
		generated := strings.Contains(name, "agentv1/")
		var s scanner.Scanner
		s.Init(fset.AddFile(name, -1, len(data)), data, nil, scanner.ScanComments)
		for {
			pos, tok, text := s.Scan()
			if tok == token.EOF {
				break
			}
			if strings.HasPrefix(text, "//go:") {
				continue // a directive to the compiler
			}
			if tok != token.COMMENT {
				for _, w := range word.FindAllString(text, -1) {
					exist[w] = true
				}
				continue
			}
			for _, w := range word.FindAllString(text, -1) {
				if mixed.MatchString(w) && !generated {
					mentions = append(mentions, mention{fset.Position(pos), w})
				}
			}
		}
	}
	if len(mentions) < 1000 {
		t.Fatalf("only %d mentions were found", len(mentions))
	}
	for _, m := range mentions {
		// A parameter at the start of a sentence has a capital.
		parameter := string(unicode.ToLower(rune(m.word[0]))) + m.word[1:]
		if !exist[m.word] && !exist[parameter] && !exist[strings.TrimSuffix(m.word, "s")] {
			t.Errorf("%s: a comment mentions %s, which does not exist", m.at, m.word)
		}
	}
}
