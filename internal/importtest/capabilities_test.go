package importtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"
)

// TestCapabilitiesAreAsked: what a runtime can do is what sandbox.Capabilities says. A type assertion would miss what a
// runtime passes on that wraps another one, and find what it does not pass on.
func TestCapabilitiesAreAsked(t *testing.T) {
	seen := 0
	for _, name := range files(t) {
		data, err := os.ReadFile(filepath.Join("../..", name))
		if filepath.Ext(name) != ".go" || err == nil && !bytes.Contains(data, []byte(`"sandlot/internal/sandbox"`)) {
			continue
		}
		set := token.NewFileSet()
		f, parseErr := parser.ParseFile(set, name, data, parser.SkipObjectResolution)
		if err != nil || parseErr != nil {
			t.Fatal(err, parseErr)
		}
		seen++
		ast.Inspect(f, func(n ast.Node) bool {
			var types []ast.Expr
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				types = append(types, n.Type)
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					types = append(types, c.(*ast.CaseClause).List...)
				}
			}
			for _, asserted := range types {
				if s, ok := asserted.(*ast.SelectorExpr); ok {
					if of, ok := s.X.(*ast.Ident); ok && of.Name == "sandbox" {
						t.Errorf("%s asserts sandbox.%s", set.Position(n.Pos()), s.Sel.Name)
					}
				}
			}
			return true
		})
	}
	if seen < 50 {
		t.Errorf("only %d files know sandboxes", seen)
	}
}
