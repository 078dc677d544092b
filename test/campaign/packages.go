package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// concurrent are the imports by which a package can have goroutines without a go statement.
var concurrent = []string{"golang.org/x/sync/errgroup", "net", "net/http", "net/http/httptest", "os/exec", "sync",
	"sync/atomic", "testing/synctest"}

// oneAtATime are packages that have such an import, and whose tests do one thing after another.
var oneAtATime = []string{"sandlot/internal/importtest", "sandlot/internal/guest/interp/direct"}

// slowFirst are packages whose tests take longest. They begin first, so that nothing waits for them alone at the end.
var slowFirst = []string{"sandlot/internal/runtime/gvisor", "sandlot/internal/store", "sandlot/internal/runtime/docker"}

// packages lists the packages below internal that have tests: of "race" those with goroutines, in which the race
// detector can find something, and of "plain" all others.
func packages(which string) (list []string, err error) {
	out, err := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}",
		"./internal/...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		path, dir, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		goes, err := hasGoroutines(dir)
		if err != nil {
			return nil, err
		}
		goes = goes && !slices.Contains(oneAtATime, path)
		if goes == (which == "race") && !slices.Contains(slowFirst, path) {
			list = append(list, path)
		}
	}
	if which == "race" {
		list = append(slices.Clone(slowFirst), list...)
	}
	return list, nil
}

// hasGoroutines reports whether a package, or its tests, start goroutines or can have some.
func hasGoroutines(dir string) (has bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return false, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return false, err
			}
			has = has || slices.Contains(concurrent, path)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				has = true
			case *ast.SelectorExpr:
				has = has || n.Sel.Name == "Parallel"
			}
			return !has
		})
	}
	return has, nil
}
