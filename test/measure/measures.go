package main

import (
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// A finding is one thing with its number: a function and its lines, a package and
// its share of arrows that run back.
type finding struct {
	name   string
	value  int
	places []string // where: file:line, and what
}

// in reports whether the finding is about something in the folder.
func (f finding) in(folder string) bool {
	return f.name == folder || strings.HasPrefix(f.name, folder+"/") || strings.HasPrefix(f.name, folder+".")
}

// A measured is one measure with all that it was taken of, the worst first.
type measured struct {
	title    string
	key      string // of its lines among the exceptions; "" has none
	bound    int
	findings []finding
	// What the table shows, where it is not the worst finding.
	boundAs, nowAs, worstAs string
	broken                  string // set where a measure of the whole is over its bound
}

func (m *measured) add(f finding) { m.findings = append(m.findings, f) }

func (m *measured) sort() {
	slices.SortStableFunc(m.findings, func(a, b finding) int {
		if a.value != b.value {
			return b.value - a.value
		}
		return strings.Compare(a.name, b.name)
	})
}

// over yields what is over the bound.
func (m *measured) over() []finding {
	if m.key == "" {
		return nil
	}
	n := slices.IndexFunc(m.findings, func(f finding) bool { return f.value <= m.bound })
	if n < 0 {
		n = len(m.findings)
	}
	return m.findings[:n]
}

func (m *measured) boundText() string {
	if m.boundAs != "" {
		return m.boundAs
	}
	return fmt.Sprint("≤ ", m.bound)
}

func (m *measured) now() string {
	if m.nowAs != "" || len(m.findings) == 0 {
		return m.nowAs
	}
	return fmt.Sprint(m.findings[0].value)
}

func (m *measured) worst() string {
	if m.worstAs != "" || len(m.findings) == 0 {
		return m.worstAs
	}
	return m.findings[0].name
}

// The bounds. Those of the whole are what it was when they were set: comments do not get
// fewer, and names not shorter.
const (
	mostLines      = 70   // of a function
	mostParameters = 6    // of a function
	mostFields     = 20   // of a struct
	largestPackage = 3000 // lines
	mostBack       = 20   // percent of a package's arrows
	widest         = 120  // columns of a line
	mostWide       = 3.0  // of 1,000 lines
	leastComments  = 8.0  // percent of the lines
	shortestNames  = 6.3  // letters, on the mean
)

// wide lists the structs that may have more fields: they are made to hold much.
var wide = []string{"internal/app.App", "internal/config.Config"}

func measure(packages []*pkg) []*measured {
	functions := &measured{title: "longest function, lines", key: "lines", bound: mostLines}
	parameters := &measured{title: "most parameters", key: "parameters", bound: mostParameters}
	fields := &measured{title: "widest struct, fields", key: "fields", bound: mostFields}
	sizes := &measured{title: "largest package, lines", key: "package", bound: largestPackage}
	columns := &measured{title: "lines over 120 columns", key: "columns", bound: 0}
	back := &measured{title: "arrows inside a package that run back, %", key: "back", bound: mostBack}
	for _, p := range packages {
		for _, f := range p.code() {
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				p.node(n, functions, parameters, fields)
				return true
			})
		}
		n := 0
		for _, f := range p.code() {
			n += len(f.lines)
		}
		if n > 0 {
			sizes.add(finding{name: p.name, value: n})
			back.add(p.back())
		}
		if f := p.columns(); f.value > 0 {
			columns.add(f)
		}
	}
	all := []*measured{functions, parameters, fields, sizes, columns, back}
	for _, m := range all {
		m.sort()
	}
	return append(all, whole(packages)...)
}

// node measures one function or struct.
func (p *pkg) node(n ast.Node, functions, parameters, fields *measured) {
	where := func(pos token.Pos) []string {
		at := p.fset.Position(pos)
		return []string{fmt.Sprintf("%s:%d", filepath.Join(p.name, filepath.Base(at.Filename)), at.Line)}
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		name := p.name + "." + function(n)
		lines := p.fset.Position(n.End()).Line - p.fset.Position(n.Pos()).Line + 1
		functions.add(finding{name: name, value: lines, places: where(n.Pos())})
		parameters.add(finding{name: name, value: n.Type.Params.NumFields(), places: where(n.Pos())})
	case *ast.TypeSpec:
		s, ok := n.Type.(*ast.StructType)
		if name := p.name + "." + n.Name.Name; ok && !slices.Contains(wide, name) {
			fields.add(finding{name: name, value: s.Fields.NumFields(), places: where(n.Pos())})
		}
	}
}

// function yields a function's name, with its receiver's before it.
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

// columns counts the lines over 120 columns, those of tests too. A line that is so long
// for a raw string, as a program in another language, cannot be wrapped, and may be.
func (p *pkg) columns() finding {
	found := finding{name: p.name}
	for _, f := range p.files {
		if f.generated {
			continue
		}
		for _, i := range p.tooWide(f) {
			found.value++
			found.places = append(found.places, fmt.Sprintf("%s:%d", f.name, i))
		}
	}
	return found
}

// tooWide yields the lines of a file over 120 columns.
func (p *pkg) tooWide(f *file) []int {
	raw := map[int]bool{}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && l.Value[0] == '`' {
			for i := p.fset.Position(l.Pos()).Line; i <= p.fset.Position(l.End()).Line; i++ {
				raw[i] = true
			}
		}
		return true
	})
	var all []int
	for i, l := range f.lines {
		if utf8.RuneCountInString(l)+3*strings.Count(l, "\t") > widest && !raw[i+1] {
			all = append(all, i+1)
		}
	}
	return all
}

// whole takes the measures of the code as a whole.
func whole(packages []*pkg) []*measured {
	var size, lines, long, comments, names, letters int
	for _, p := range packages {
		for _, f := range p.code() {
			size += tokens([]byte(strings.Join(f.lines, "\n")))
			lines += len(f.lines)
			comments += commentLines(p.fset, f.syntax)
			n, l := declared(f.syntax)
			names, letters = names+n, letters+l
			long += len(p.tooWide(f))
		}
	}
	rate := 1000 * float64(long) / float64(lines)
	share := 100 * float64(comments) / float64(lines)
	mean := float64(letters) / float64(names)
	of := func(title, sign string, bound, now float64, ok bool) *measured {
		m := &measured{title: title, boundAs: fmt.Sprintf("%s %.1f", sign, bound), nowAs: fmt.Sprintf("%.1f", now),
			worstAs: "(the whole)"}
		if !ok {
			m.broken = fmt.Sprintf("%s: %s, and the bound is %s", title, m.nowAs, m.boundAs)
		}
		return m
	}
	// The size is shown and has no bound: features add to it.
	total := &measured{title: "the whole, tokens", boundAs: "–", worstAs: fmt.Sprintf("(%d lines)", lines)}
	total.add(finding{name: ".", value: size})
	return []*measured{
		of("lines over 120 columns, per 1,000", "≤", mostWide, rate, true), // the lines themselves are counted above
		of("comment lines, %", "≥", leastComments, share, share >= leastComments),
		of("mean length of a name", "≥", shortestNames, mean, mean >= shortestNames),
		total,
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

// declared counts the names that a file declares for others to read, and their letters:
// of types, functions, methods, fields, and the package's variables and constants. What
// is local may be short.
func declared(f *ast.File) (names, letters int) {
	count := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.Name != "_" {
				names++
				letters += utf8.RuneCountInString(id.Name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			count(d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					count(spec.Names...)
				case *ast.TypeSpec:
					count(spec.Name)
					ast.Inspect(spec.Type, func(n ast.Node) bool {
						if field, ok := n.(*ast.Field); ok {
							count(field.Names...)
						}
						_, function := n.(*ast.FuncType)
						return !function
					})
				}
			}
		}
	}
	return names, letters
}

// tokens counts the words and signs of a file's code. Unlike lines, they do not change
// when lines are wrapped, comments written, and names written out.
func tokens(src []byte) int {
	fset := token.NewFileSet()
	var s scanner.Scanner
	s.Init(fset.AddFile("", fset.Base(), len(src)), src, nil, 0)
	n := 0
	for {
		switch _, tok, text := s.Scan(); {
		case tok == token.EOF:
			return n
		case tok == token.SEMICOLON && text == "\n":
		default:
			n++
		}
	}
}
