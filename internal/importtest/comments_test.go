package importtest

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// properNames are words with a capital in the middle that are no names in this code.
var properNames = strings.Fields("CentOS FreeBSD GitHub GoReleaser gRPC IPv4 IPv6 JavaScript macOS OpenELEC " +
	"OpenSSL openSUSE PyPI SQLite TypeScript WriterTo cgroupsPath")

// A comment mentions only names that exist: who renames something renames it in the comments too. A word with
// a capital in its middle counts as a name.
func TestCommentsNameWhatExists(t *testing.T) {
	type mention struct {
		at        token.Position
		pkg, word string // pkg is empty if the word is not qualified
	}
	var mentions []mention
	exist, packages := map[string]bool{}, map[string]bool{"": true}
	for _, name := range properNames {
		exist[name] = true
	}
	word, mixed := regexp.MustCompile(`\w+`), regexp.MustCompile(`^[A-Za-z][a-z0-9]+[A-Z]\w*$`)
	qualified := regexp.MustCompile(`(?:(\w+)\.)?(\w+)`)
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
		packages[filepath.Base(filepath.Dir(name))] = true
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
			for _, m := range qualified.FindAllStringSubmatch(text, -1) {
				if mixed.MatchString(m[2]) && !generated {
					mentions = append(mentions, mention{fset.Position(pos), m[1], m[2]})
				}
			}
		}
	}
	if len(mentions) < 1000 {
		t.Fatalf("only %d mentions were found", len(mentions))
	}
	for _, m := range mentions {
		if first := m.pkg; !packages[first] && !unicode.IsUpper(rune((first + "a")[0])) {
			continue // a name of another module, or of the standard library
		}
		// A parameter at the start of a sentence has a capital.
		parameter := string(unicode.ToLower(rune(m.word[0]))) + m.word[1:]
		if !exist[m.word] && !exist[parameter] && !exist[strings.TrimSuffix(m.word, "s")] {
			t.Errorf("%s: a comment mentions %s, which does not exist", m.at, m.word)
		}
	}
}

var (
	// fieldStart matches the beginning of a comment that says what a field is.
	fieldStart = regexp.MustCompile(`^//\s+(\w+)(?::| is | are | has | says | returns | reports | bounds )`)
	// implementsName matches a comment about a method of an interface.
	implementsName = regexp.MustCompile(`^// \w+ implements (\w+)\.(\w+)[.:,]`)
)

// determiners begin comments that do not begin with the name of their field.
var determiners = strings.Fields("A All An Both Each If It One Only Other That The There These This What Where")

// The comment of a field begins with the field's name, if it begins with a name; and an interface that a
// comment names exists.
func TestCommentsOfFieldsAndMethods(t *testing.T) {
	type use struct {
		at            token.Position
		pkg, declared string
	}
	var uses []use
	declared, packages := map[string]bool{}, map[string]bool{}
	fields := 0
	fset := token.NewFileSet()
	for _, name := range files(t) {
		if filepath.Ext(name) != ".go" || strings.Contains(name, "agentv1/") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join("../..", name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		packages[f.Name.Name] = true
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				declared[f.Name.Name+"."+n.Name.Name] = true
			case *ast.FuncDecl:
				if n.Doc != nil {
					if m := implementsName.FindStringSubmatch(n.Doc.List[0].Text); m != nil {
						uses = append(uses, use{fset.Position(n.Pos()), m[1], m[2]})
					}
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if field.Doc == nil || len(field.Names) == 0 {
						continue
					}
					fields++
					m := fieldStart.FindStringSubmatch(field.Doc.List[0].Text)
					named := func(id *ast.Ident) bool { return id.Name == m[1] }
					if m != nil && !slices.ContainsFunc(field.Names, named) && !slices.Contains(determiners, m[1]) {
						t.Errorf("%s: the comment of %s begins with %q", fset.Position(field.Pos()),
							field.Names[0], m[1])
					}
				}
			}
			return true
		})
	}
	if fields < 200 || len(uses) < 100 {
		t.Fatalf("only %d fields and %d methods were found", fields, len(uses))
	}
	for _, u := range uses {
		if packages[u.pkg] && !declared[u.pkg+"."+u.declared] {
			t.Errorf("%s: there is no %s.%s", u.at, u.pkg, u.declared)
		}
	}
}
