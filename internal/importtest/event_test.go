package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sandlot/internal/policy"
)

// Names of operations stand in the tables of policy and event alone: elsewhere an operation is a constant of policy,
// and each of those has a row in the table of policy.
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
			value := operationIn(n)
			if value == nil {
				return true
			}
			seen++
			ast.Inspect(value, func(n ast.Node) bool {
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

// operationIn returns the expression of an operation: the field of a literal, or what an operation of hub is made of.
func operationIn(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Operation" {
			return n.Value
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "newOp" && len(n.Args) > 0 {
			return n.Args[0]
		}
	}
	return nil
}

// Each constant that names an operation has a row in the table: without one policy refuses what is asked for.
func TestOperationsHaveRows(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../policy/operation.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := spec.Type.(*ast.Ident); !ok || of.Name != "Operation" {
			return true
		}
		for i, name := range spec.Names {
			seen++
			lit, ok := spec.Values[i].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s is not written out", name)
				continue
			}
			if o, err := strconv.Unquote(lit.Value); err != nil || !policy.Operation(o).Known() {
				t.Errorf("%s has no row in the table of operations: %v, %v", name, lit.Value, err)
			}
		}
		return true
	})
	if seen != len(policy.Operations()) {
		t.Errorf("%d constants, and %d operations", seen, len(policy.Operations()))
	}
}
