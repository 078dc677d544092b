package importtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/policy"
)

// A mention is a piece of a document that stands for something in the repository.
type mention struct{ file, text string }

// documents yields the documents, their text without code blocks, and their code
// blocks. The changelog is left out: it tells of what was.
func documents(t *testing.T) (prose, blocks map[string]string) {
	t.Helper()
	prose, blocks = map[string]string{}, map[string]string{}
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".md") || f == "CHANGELOG.md" || strings.Contains(f, "/testdata/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("../..", f))
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range strings.Split(string(data), "```") {
			if i%2 == 0 {
				prose[f] += part
			} else {
				blocks[f] += part
			}
		}
	}
	if len(prose) < 20 {
		t.Fatalf("only %d documents were found", len(prose))
	}
	return prose, blocks
}

// files yields the files of the repository.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(f string) bool {
		_, err := os.Lstat(filepath.Join("../..", f))
		return err != nil
	})
}

// maxFile is how large a file of the repository may be, in bytes: the largest is generated, and has 140 KB.
const maxFile = 1 << 20

// TestNoPrograms: what is built is not part of the repository.
func TestNoPrograms(t *testing.T) {
	for _, f := range files(t) {
		if st, err := os.Lstat(filepath.Join("../..", f)); err == nil && st.Size() > maxFile {
			t.Errorf("%s has %d bytes: is it a program that was built? Remove it (git rm --cached), and let "+
				".gitignore have it", f, st.Size())
		}
	}
}

// spans yields what stands between back quotes.
func spans(text string) []string {
	var found []string
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// examples are what a document has the reader make, or names that others gave.
var examples = []string{
	"a_x", "x_y", // servers' tools
	"count_words",
	"console.log", // JavaScript's
	"deploy/config",
	"internal/builtin/count.go",
	"internal/runtime/mine",
	"remote_revalidating", // gVisor's
	"secrets.key",         // a file
	"stderr_bytes",        // the code makes them of their streams' names
	"stdout_bytes",
}

// TestPathsOfDocuments: the files, folders and packages that documents name are there.
func TestPathsOfDocuments(t *testing.T) {
	all := files(t)
	folders := map[string]bool{}
	for _, f := range all {
		for d := path.Dir(f); d != "."; d = path.Dir(d) {
			folders[d] = true
		}
	}
	there := func(p string) bool {
		p = strings.TrimSuffix(p, "/")
		return slices.ContainsFunc(all, func(f string) bool { return matches(p, f) }) ||
			slices.ContainsFunc(slices.Collect(mapKeys(folders)), func(f string) bool { return matches(p, f) })
	}
	file := regexp.MustCompile(`^[\w.*-]+(/[\w.*-]+)*\.go$`)
	within := regexp.MustCompile(`^[\w.*-]+(/[\w.*-]+)+/?$`)
	prose, _ := documents(t)
	found := 0
	for doc, text := range prose {
		for _, s := range spans(text) {
			first, _, _ := strings.Cut(s, "/")
			ours := folders[first] || folders["internal/"+first]
			if !file.MatchString(s) && !(within.MatchString(s) && ours) || slices.Contains(examples, s) {
				continue
			}
			found++
			if !there(s) {
				t.Errorf("%s: there is no %s", doc, s)
			}
		}
	}
	if found < 80 {
		t.Errorf("only %d paths were found", found)
	}
}

func mapKeys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// matches reports whether a file's path is, or ends in, what a document says.
func matches(p, f string) bool {
	tail := strings.Split(f, "/")
	n := strings.Count(p, "/") + 1
	if n > len(tail) {
		return false
	}
	ok, _ := path.Match(p, strings.Join(tail[len(tail)-n:], "/"))
	return ok
}

// TestLinksOfDocuments: links inside the repository lead to a file, and to a heading.
func TestLinksOfDocuments(t *testing.T) {
	prose, _ := documents(t)
	found := 0
	for doc, text := range prose {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			found++
			to, anchor, _ := strings.Cut(m[1], "#")
			target := doc
			if to != "" {
				target = path.Join(path.Dir(doc), to)
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", doc, m[1])
			} else if anchor != "" && !slices.Contains(anchors(prose[target]), anchor) {
				t.Errorf("%s: %s has no heading #%s", doc, target, anchor)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d links were found", found)
	}
}

// anchors yields the anchors of a document's headings.
func anchors(text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(text, -1) {
		a := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(a, " ", "-"))
	}
	return found
}

// TestNamesOfDocuments: the tests, and the identifiers `package.Name`, that documents
// name are there.
func TestNamesOfDocuments(t *testing.T) {
	declared, tests := identifiers(t)
	prose, _ := documents(t)
	name := regexp.MustCompile(`^([a-z][a-z0-9]*)\.([A-Z]\w*)(?:\.(\w+))?(?:\(.*\))?$`)
	test := regexp.MustCompile(`^Test[A-Z]\w*…?$`)
	found := 0
	for doc, text := range prose {
		for _, s := range spans(text) {
			if test.MatchString(s) {
				found++
				prefix, open := strings.CutSuffix(s, "…")
				if !slices.ContainsFunc(tests, func(n string) bool {
					return n == s ||
						open && strings.HasPrefix(n, prefix)
				}) {
					t.Errorf("%s: there is no test %s", doc, s)
				}
			}
			m := name.FindStringSubmatch(s)
			if m == nil || declared[m[1]] == nil {
				continue
			}
			found++
			for _, id := range m[2:] {
				if id != "" && !declared[m[1]][id] {
					t.Errorf("%s: package %s has no %s (%s)", doc, m[1], id, s)
				}
			}
		}
	}
	if found < 150 {
		t.Errorf("only %d names were found", found)
	}
}

// identifiers yields the names that each package declares, fields and methods too, by
// the package's name, and all tests.
func identifiers(t *testing.T) (declared map[string]map[string]bool, tests []string) {
	t.Helper()
	declared = map[string]map[string]bool{}
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", f), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p := strings.TrimSuffix(syntax.Name.Name, "_test")
		if declared[p] == nil {
			declared[p] = map[string]bool{}
		}
		names(syntax, func(id *ast.Ident, local bool) {
			if !local {
				declared[p][id.Name] = true
			}
			if strings.HasPrefix(id.Name, "Test") && strings.HasSuffix(f, "_test.go") {
				tests = append(tests, id.Name)
			}
		})
	}
	// The program's own package is called main everywhere.
	delete(declared, "main")
	return declared, tests
}

// names calls do for each name that a file declares; local are variables and
// parameters inside functions.
func names(f *ast.File, do func(id *ast.Ident, local bool)) {
	each := func(local bool, ids ...*ast.Ident) {
		for _, id := range ids {
			do(id, local)
		}
	}
	inside := false
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			each(false, n.Name)
		case *ast.TypeSpec:
			each(false, n.Name)
			switch s := n.Type.(type) {
			case *ast.StructType:
				for _, f := range s.Fields.List {
					each(false, f.Names...)
				}
			case *ast.InterfaceType:
				for _, m := range s.Methods.List {
					each(false, m.Names...)
				}
			}
		case *ast.FuncType:
			for _, l := range []*ast.FieldList{n.Params, n.Results} {
				if l != nil {
					for _, f := range l.List {
						each(true, f.Names...)
					}
				}
			}
		case *ast.ValueSpec:
			each(inside, n.Names...)
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					each(true, id)
				}
			}
		}
		return true
	}
	for _, d := range f.Decls {
		_, inside = d.(*ast.FuncDecl)
		ast.Inspect(d, visit)
	}
}

// TestSettingsOfDocuments: settings, their variables, and names of fields and arguments
// that documents show stand in the code too.
func TestSettingsOfDocuments(t *testing.T) {
	have, settings := code(t) // each setting with its variable
	groups := map[string]bool{}
	for s := range settings {
		if group, _, ok := strings.Cut(s, "."); ok {
			groups[group] = true
		}
	}
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	member := regexp.MustCompile(`^([a-z_]+)\.([a-z_]+)$`)
	variable := regexp.MustCompile(`\bSANDLOT_[A-Z_]*[A-Z]\b`)
	prose, blocks := documents(t)
	generated := regexp.MustCompile(`(?s)<!-- reference: .*<!-- end of reference -->`) // of the fields in the code
	found := 0
	for doc, text := range prose {
		text = generated.ReplaceAllString(text, "")
		for _, s := range spans(text) {
			if slices.Contains(examples, s) {
				continue
			}
			if name.MatchString(s) {
				if found++; !have[s] && !slices.Contains(theirs, s) {
					t.Errorf("%s: %s stands nowhere in the code", doc, s)
				}
			}
			if m := member.FindStringSubmatch(s); m != nil && groups[m[1]] && !settings[s] &&
				!policy.Operation(s).Known() {
				t.Errorf("%s: there is no setting %s", doc, s)
			}
		}
		for _, s := range variable.FindAllString(text+blocks[doc], -1) {
			if found++; !settings[s] && !have[s] {
				t.Errorf("%s: %s is no setting's variable, and the code does not know it", doc, s)
			}
		}
	}
	if found < 200 || len(settings) < 2*40 {
		t.Errorf("only %d names and %d settings were found", found, len(settings))
	}
}

// TestTargetsOfDocuments: what documents have the reader make, the Makefile can.
func TestTargetsOfDocuments(t *testing.T) {
	data, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	prose, blocks := documents(t)
	span := regexp.MustCompile(`^make ([a-z]+)\b`)
	line := regexp.MustCompile(`(?m)^(?:\$ )?make ([a-z]+)\b`)
	var found []mention
	for doc, text := range prose {
		for _, s := range spans(text) {
			if m := span.FindStringSubmatch(s); m != nil {
				found = append(found, mention{doc, m[1]})
			}
		}
		for _, m := range line.FindAllStringSubmatch(blocks[doc], -1) {
			found = append(found, mention{doc, m[1]})
		}
	}
	if len(found) < 5 {
		t.Errorf("only %d targets were found", len(found))
	}
	for _, m := range found {
		if !regexp.MustCompile(`(?m)^` + m.text + `:`).Match(data) {
			t.Errorf("%s: there is no `make %s`", m.file, m.text)
		}
	}
}

// TestPackagesOfArchitecture: the table of packages lists every package of internal, once, and no others.
func TestPackagesOfArchitecture(t *testing.T) {
	prose, _ := documents(t)
	_, text, _ := strings.Cut(prose["docs/ARCHITECTURE.md"], "\n## The packages\n")
	text, _, _ = strings.Cut(text, "\nThe layers, ")
	listed := map[string]int{}
	for _, row := range strings.Split(text, "\n") {
		if cells := strings.Split(row, "|"); len(cells) > 1 {
			for _, p := range spans(cells[1]) {
				listed[p]++
			}
		}
	}
	all := map[string]bool{}
	for p := range sources(t, false) {
		if short, ok := strings.CutPrefix(p, "sandlot/internal/"); ok {
			all[short] = true
			if listed[short] != 1 {
				t.Errorf("docs/ARCHITECTURE.md: the table of packages has %d rows of %s: give it one, which says what "+
					"the package owns", listed[short], short)
			}
		}
	}
	for p := range listed {
		if !all[p] {
			t.Errorf("docs/ARCHITECTURE.md: there is no package %s: delete its row", p)
		}
	}
}

// TestTablesOfDocuments: each table is whole: a header, a line of dashes, and rows with as many cells. A row after
// an empty line stands alone.
func TestTablesOfDocuments(t *testing.T) {
	prose, _ := documents(t)
	found := 0
	for doc, text := range prose {
		for _, table := range tables(text) {
			found++
			if problem := broken(table); problem != "" {
				t.Errorf("%s: %s", doc, problem)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d tables were found", found)
	}
	for text, want := range map[string]bool{
		"| a | b |\n|---|---|\n| `x\\|y` | 2 |": false,
		"| a | b |\n|---|:-:|":                  false,
		"| a | b |":                             true, // a row alone
		"| a | b |\n| 1 | 2 |":                  true, // no line of dashes
		"| a | b |\n|---|---|\n| `x|y` | 2 |":   true,
		"| a | b |\n|---|---|\n| 1 |":           true,
	} {
		if got := broken(tables(text)[0]) != ""; got != want {
			t.Errorf("%q is broken: %v", text, got)
		}
	}
}

// tables returns the lines that begin with a bar, in groups without other lines between them.
func tables(text string) (all [][]string) {
	inside := false
	for _, l := range strings.Split(text, "\n") {
		row := strings.HasPrefix(l, "|")
		if row && !inside {
			all = append(all, nil)
		}
		if row {
			all[len(all)-1] = append(all[len(all)-1], l)
		}
		inside = row
	}
	return all
}

// broken returns what is wrong with a table, or "".
func broken(table []string) string {
	if len(table) < 2 || !regexp.MustCompile(`^\|(\s*:?-+:?\s*\|)+\s*$`).MatchString(table[1]) {
		return "no table begins with the row " + table[0] + "\nis there an empty line before it?"
	}
	cells := func(row string) int { return strings.Count(strings.ReplaceAll(row, `\|`, ""), "|") }
	for _, row := range table {
		if cells(row) != cells(table[0]) {
			return fmt.Sprintf("the row has %d cells, and its table %d: %s", cells(row)-1, cells(table[0])-1, row)
		}
	}
	return ""
}
