package importtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEdgesReachNothingBehindTheHub: an edge calls no function below hub. It needs no import for that: a field or a
// result of hub leads there too, as in `s.Hub.Sessions.List`.
func TestEdgesReachNothingBehindTheHub(t *testing.T) {
	c := newChecker(t)
	uses := 0
	for p, at := range places {
		if at.layer != "L4" {
			continue
		}
		pkg, info := c.check(t, "sandlot/internal/"+p)
		if pkg == nil {
			t.Fatalf("%s was not checked", p)
		}
		for id, o := range info.Uses {
			uses++
			if isBehindHub(o) {
				t.Errorf("%s: %s calls %s of %s, which stands below hub: call a function of hub",
					c.fset.Position(id.Pos()), p, o.Name(), o.Pkg().Path())
			}
		}
	}
	if uses < 5000 {
		t.Errorf("only %d names were found", uses)
	}
}

// Each way around hub that needs no import is found.
func TestWaysAroundTheHub(t *testing.T) {
	c := newChecker(t)
	for name, c2 := range map[string]struct {
		code  string
		found bool
	}{
		"an operation":      {`func f(h *hub.Hub) { _ = h.Rules; _ = hub.CreateSession }`, false},
		"a method":          {`func f(h *hub.Hub) { h.Sessions.List(nil, auth.Local, "") }`, true},
		"a variable":        {`func f(h *hub.Hub) { v := h.Vault; _ = v.List }`, true},
		"through a struct":  {`type s struct{ *hub.Hub }; func f(x s) { x.Servers.Close() }`, true},
		"a function value":  {`func f(h *hub.Hub) { list := h.Ports.List; _ = list }`, true},
		"the configuration": {`func f(c hub.Config) { c.Templates.List() }`, true},
	} {
		f, err := parser.ParseFile(c.fset, name+".go",
			"package edge\nimport (\"sandlot/internal/auth\"; \"sandlot/internal/hub\")\nvar _ = auth.Local\n"+c2.code, 0)
		if err != nil {
			t.Fatal(err)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		(&types.Config{Importer: c, Error: func(error) {}}).Check("edge", c.fset, []*ast.File{f}, info)
		got := slices.ContainsFunc(slices.Collect(maps.Values(info.Uses)), isBehindHub)
		if got != c2.found {
			t.Errorf("%s is found: %v", name, got)
		}
	}
}

// isBehindHub reports whether something is a function or method of a service, of an implementation, or of the wire.
// The fields of a result are data, and may be read.
func isBehindHub(o types.Object) bool {
	if _, ok := o.(*types.Func); !ok || o.Pkg() == nil {
		return false
	}
	switch places[strings.TrimPrefix(o.Pkg().Path(), "sandlot/internal/")].layer {
	case "wire", "L2", "adapter":
		return true
	}
	return false
}

// A checker finds the types of our packages from their source, and those of the standard library from what the
// compiler left in its cache. Of other modules it knows nothing: what depends on them has no type.
type checker struct {
	fset     *token.FileSet
	packages map[string]*types.Package
	standard types.Importer
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	imported := map[string]bool{}
	for _, tos := range sources(t, false) {
		maps.Copy(imported, tos)
	}
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}
	for p := range imported {
		if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") && first != "sandlot" && first != "C" {
			args = append(args, p)
		}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for _, l := range strings.Fields(string(out)) {
		p, file, _ := strings.Cut(l, "=")
		exports[p] = file
	}
	c := &checker{fset: token.NewFileSet(), packages: map[string]*types.Package{}}
	c.standard = importer.ForCompiler(c.fset, "gc", func(p string) (io.ReadCloser, error) {
		if exports[p] == "" {
			return nil, fmt.Errorf("no types of %s", p)
		}
		return os.Open(exports[p])
	})
	return c
}

// Import implements types.Importer.
func (c *checker) Import(p string) (*types.Package, error) {
	if have := c.packages[p]; have != nil {
		return have, nil
	}
	first, _, _ := strings.Cut(p, "/")
	switch {
	case first == "sandlot":
		pkg, err := c.source(p, &types.Config{IgnoreFuncBodies: true}, nil)
		c.packages[p] = pkg
		return pkg, err
	case strings.Contains(first, "."):
		other := types.NewPackage(p, path.Base(p))
		other.MarkComplete()
		c.packages[p] = other
		return other, nil
	}
	return c.standard.Import(p)
}

// check checks a package with what its functions do.
func (c *checker) check(t *testing.T, p string) (*types.Package, *types.Info) {
	t.Helper()
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := c.source(p, &types.Config{}, info)
	if err != nil {
		t.Fatal(err)
	}
	return pkg, info
}

func (c *checker) source(p string, conf *types.Config, info *types.Info) (*types.Package, error) {
	dir := filepath.Join("../..", strings.TrimPrefix(p, "sandlot/"))
	of, err := build.Default.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var all []*ast.File
	for _, name := range of.GoFiles {
		f, err := parser.ParseFile(c.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	conf.Importer, conf.Error = c, func(error) {} // of what has no type
	pkg, err := conf.Check(p, c.fset, all, info)
	if pkg == nil {
		return nil, errors.Join(fmt.Errorf("%s has no types", p), err)
	}
	return pkg, nil
}
