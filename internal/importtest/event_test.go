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

// Names of operations stand in the tables of policy and event alone.
func TestOperationsStandInTables(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := kv.Key.(*ast.Ident); !ok || key.Name != "Operation" {
				return true
			}
			seen++
			ast.Inspect(kv.Value, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					t.Errorf("%s writes out the name of an operation: %s", files.Position(lit.Pos()), lit.Value)
				}
				return true
			})
			return true
		})
		return nil
	})
	if err != nil || seen < 10 {
		t.Errorf("%d are found, %v", seen, err)
	}
}
