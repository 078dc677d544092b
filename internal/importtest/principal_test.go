package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Principals are made in package auth alone: elsewhere there is but nobody, the zero
// value. Who has which role is not decided where one is needed.
func TestPrincipalsAreMadeInOnePlace(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "../auth/") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || !selects(lit.Type, "Principal") {
				return true
			}
			seen++
			if len(lit.Elts) > 0 {
				t.Errorf("%s makes a principal", files.Position(lit.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d are found, %v", seen, err)
	}
}

// selects says whether a type is auth's of that name.
func selects(e ast.Expr, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == "auth"
}
