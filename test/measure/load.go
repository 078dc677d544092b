package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "sandlot/"

// A pkg is one package of the module, parsed and with its types.
type pkg struct {
	name  string // the path without the module's: internal/hub
	tests bool   // a package that only tests use
	files []*file
	fset  *token.FileSet
	types *types.Package
	info  *types.Info
}

// A file is one Go file.
type file struct {
	name      string // beside the module's root: internal/hub/hub.go
	lines     []string
	syntax    *ast.File
	generated bool
	test      bool // *_test.go; such a file has no types
}

// code yields the files that are neither tests nor generated.
func (p *pkg) code() []*file {
	var fs []*file
	for _, f := range p.files {
		if !p.tests && !f.test && !f.generated {
			fs = append(fs, f)
		}
	}
	return fs
}

// listed is what `go list` says about a package.
type listed struct {
	ImportPath, Dir, Export                     string
	GoFiles, TestGoFiles, XTestGoFiles, Imports []string
	Error                                       *struct{ Err string }
}

// load parses and checks all packages of the module; the types of what they import
// come from the compiler's export data, which the build cache has.
func load() ([]*pkg, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles,Imports,Error", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	var ours []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if l.Error != nil {
			return nil, fmt.Errorf("%s: %s", l.ImportPath, l.Error.Err)
		}
		exports[l.ImportPath] = l.Export
		if strings.HasPrefix(l.ImportPath, module) {
			ours = append(ours, l)
		}
	}
	if len(ours) == 0 {
		return nil, errors.New("no package was found: start it in the root of the repository")
	}
	var packages []*pkg
	for _, l := range ours {
		p, err := parse(root, l)
		if err != nil {
			return nil, err
		}
		if err := p.check(l.ImportPath, exports); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

func parse(root string, l listed) (*pkg, error) {
	p := &pkg{name: strings.TrimPrefix(l.ImportPath, module), fset: token.NewFileSet()}
	p.tests = strings.HasPrefix(p.name, "test/") || strings.HasSuffix(p.name, "test")
	add := func(names []string, test bool) error {
		for _, name := range names {
			path := filepath.Join(l.Dir, name)
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			syntax, err := parser.ParseFile(p.fset, path, src, parser.ParseComments)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			p.files = append(p.files, &file{
				name: rel, syntax: syntax, generated: ast.IsGenerated(syntax), test: test,
				lines: strings.Split(strings.TrimSuffix(string(src), "\n"), "\n"),
			})
		}
		return nil
	}
	return p, errors.Join(add(l.GoFiles, false), add(l.TestGoFiles, true), add(l.XTestGoFiles, true))
}

func (p *pkg) check(path string, exports map[string]string) error {
	conf := types.Config{Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})}
	p.info = &types.Info{Uses: map[*ast.Ident]types.Object{}}
	var syntax []*ast.File
	for _, f := range p.files {
		if !f.test {
			syntax = append(syntax, f.syntax)
		}
	}
	var err error
	p.types, err = conf.Check(path, p.fset, syntax, p.info)
	return err
}
