package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// The advice. A longer function, or a larger package, can be the better one: then it stays.
const (
	functionLines      = 70
	functionParameters = 6
	structFields       = 20
	packageLines       = 3000
	lineColumns        = 120 // a tab is four columns
)

// wide lists structs with one field for each group of settings.
var wide = []string{"internal/config.Config"}

// A finding is one thing that is larger than the advice.
type finding struct {
	name  string // a package, package.Function, package.Type or package.Type.Method
	at    string // file:line; empty for a package
	unit  string // what is counted
	value int
	bound int // the advice
}

// in reports whether the finding is in a folder, or below it.
func (f finding) in(folder string) bool {
	return folder == "." || f.name == folder || strings.HasPrefix(f.name, folder+"/") ||
		strings.HasPrefix(f.name, folder+".")
}

// measured is the code with its measures.
type measured struct {
	findings                  []finding // the worst first, by value/bound
	lines, comments, packages int
	sizes                     map[string]int // lines of code, by package
}

// measure reads all Go files of a tree.
func measure(tree fs.FS) (*measured, error) {
	m := &measured{sizes: map[string]int{}}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(base, ".go"):
			return nil
		}
		src, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		return m.file(name, src)
	})
	if err != nil {
		return nil, err
	}
	for p, lines := range m.sizes {
		m.lines += lines
		m.packages++
		m.add(finding{name: p, unit: "lines", value: lines, bound: packageLines})
	}
	slices.SortFunc(m.findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(b.value*a.bound, a.value*b.bound), cmp.Compare(a.name, b.name),
			cmp.Compare(a.at, b.at))
	})
	return m, nil
}

// add keeps a finding that is over its bound.
func (m *measured) add(f finding) {
	if f.value > f.bound {
		m.findings = append(m.findings, f)
	}
}

// file measures one file.
func (m *measured) file(name string, src []byte) error {
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(syntax) {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
	m.columns(fset, syntax, name, lines)
	p := path.Dir(name)
	if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(p, "test/") || strings.HasSuffix(p, "test") {
		return nil
	}
	m.sizes[p] += len(lines)
	m.comments += commentLines(fset, syntax)
	ast.Inspect(syntax, func(n ast.Node) bool {
		line := func(pos token.Pos) int { return fset.Position(pos).Line }
		switch n := n.(type) {
		case *ast.FuncDecl:
			f := finding{name: p + "." + function(n), at: fmt.Sprintf("%s:%d", name, line(n.Pos()))}
			f.unit, f.value, f.bound = "lines", line(n.End())-line(n.Pos())+1, functionLines
			m.add(f)
			f.unit, f.value, f.bound = "parameters", n.Type.Params.NumFields(), functionParameters
			m.add(f)
		case *ast.TypeSpec:
			f := finding{name: p + "." + n.Name.Name, at: fmt.Sprintf("%s:%d", name, line(n.Pos()))}
			if s, ok := n.Type.(*ast.StructType); ok && !slices.Contains(wide, f.name) {
				f.unit, f.value, f.bound = "fields", s.Fields.NumFields(), structFields
				m.add(f)
			}
		}
		return true
	})
	return nil
}

// function returns the name of a function, or the receiver's and the method's.
func function(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch u := t.(type) {
		case *ast.StarExpr:
			t = u.X
		case *ast.IndexExpr:
			t = u.X
		case *ast.IndexListExpr:
			t = u.X
		case *ast.Ident:
			return u.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

// columns measures the lines of a file. Raw strings are left out: nobody can wrap a program in another language.
func (m *measured) columns(fset *token.FileSet, syntax *ast.File, name string, lines []string) {
	raw := map[int]bool{}
	ast.Inspect(syntax, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && l.Value[0] == '`' {
			for i := fset.Position(l.Pos()).Line; i <= fset.Position(l.End()).Line; i++ {
				raw[i] = true
			}
		}
		return true
	})
	for i, l := range lines {
		if !raw[i+1] {
			m.add(finding{name: path.Dir(name), at: fmt.Sprintf("%s:%d", name, i+1), unit: "columns in a line",
				value: utf8.RuneCountInString(l) + 3*strings.Count(l, "\t"), bound: lineColumns})
		}
	}
}

// commentLines counts the lines that have nothing but a comment.
func commentLines(fset *token.FileSet, f *ast.File) int {
	code := map[int]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		code[fset.Position(n.Pos()).Line] = true
		return true
	})
	lines := 0
	for _, g := range f.Comments {
		for _, c := range g.List {
			first := fset.Position(c.Pos()).Line
			if !code[first] {
				lines += fset.Position(c.End()).Line - first + 1
			}
		}
	}
	return lines
}
