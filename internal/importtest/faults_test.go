package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// errorsInFaults are how many faults of a file have the text of an error in their message. Each is of a function whose
// errors are words for users by its contract: Pool.RuntimeOf, Pool.HibernatorNamed, and the reader of base64.
var errorsInFaults = map[string]int{"session/sessions.go": 1, "session/session.go": 1, "session/copy.go": 3,
	"builtin/files.go": 1, "builtin/follow.go": 1}

// TestFaultsNameNoPaths: users read the messages of faults, and errors of runtimes and of the operating system name files
// of the server. So their texts are not in the messages of the packages between users and sandboxes; the cause of a
// fault is for the log.
func TestFaultsNameNoPaths(t *testing.T) {
	for _, dir := range []string{"session", "session/*", "snapshot", "pool", "workspace", "volume", "builtin", "port"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			var found []token.Pos
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && saysError(call) {
					found = append(found, call.Pos())
				}
				return true
			})
			name := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
			if len(found) == errorsInFaults[name] {
				continue
			}
			t.Errorf("%s: %d faults have the text of an error in their message, and %d are known:", name, len(found),
				errorsInFaults[name])
			for _, pos := range found {
				t.Errorf("\t%s", set.Position(pos))
			}
		}
	}
}

// saysError says whether a call makes a fault whose message has the text of an error.
func saysError(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if p, ok := f.X.(*ast.Ident); !ok || p.Name != "fault" {
		return false
	}
	first := map[string]int{"New": 1, "Wrap": 2, "Argument": 1, "Limit": 3}[f.Sel.Name]
	if first == 0 || len(call.Args) <= first {
		return false
	}
	says := false
	for _, arg := range call.Args[first:] {
		if id, ok := arg.(*ast.Ident); ok && (id.Name == "cause" || strings.HasSuffix(strings.ToLower(id.Name), "err")) {
			says = true
		}
		ast.Inspect(arg, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Error" {
				says = true
			}
			return true
		})
	}
	return says
}
