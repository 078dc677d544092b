// Command cross checks Sandlot for other systems than this one: `cross OS/ARCH...` checks the types of each program
// there and runs the analyzers of `go vet` on the packages of Sandlot in it. Beside Linux, there is the server alone.
// It compiles nothing: types come from the sources of all packages, in a tenth of the time that a compiler takes.
// Tests are left out: they need Linux, and those that run elsewhere than here are built where they run (test/emulated).
package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

func main() {
	failed := false
	for _, system := range os.Args[1:] {
		complaints, err := check(system)
		if err != nil {
			fmt.Fprintf(os.Stderr, "cross: %s: %v\n", system, err)
		}
		for _, c := range complaints {
			fmt.Fprintf(os.Stderr, "%s: %s\n", system, c)
		}
		failed = failed || err != nil || len(complaints) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// programs are those that there are on a system.
func programs(goos string) []string {
	all := []string{"./cmd/sandlot"}
	if goos == "linux" {
		all = append(all, "./cmd/sandlot-agent", "./cmd/sandlot-runsc")
	}
	return all
}

// check returns what the compiler and the analyzers have to say of all programs on a system, OS/ARCH: a line for each.
func check(system string) (complaints []string, err error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return nil, fmt.Errorf("that is not OS/ARCH")
	}
	roots, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax,
		Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)}, programs(goos)...)
	if err != nil {
		return nil, err
	}
	var ours []*packages.Package
	for p := range packages.Postorder(roots) {
		if !strings.HasPrefix(p.PkgPath, "sandlot/") {
			continue
		}
		ours = append(ours, p)
		for _, e := range p.Errors {
			complaints = append(complaints, e.Error())
		}
	}
	if len(complaints) > 0 {
		return complaints, nil
	}
	graph, err := checker.Analyze(vet.Suite, ours, nil)
	if err != nil {
		return nil, err
	}
	for action := range graph.All() {
		if action.Err != nil {
			return nil, action.Err
		}
		if !action.IsRoot {
			continue
		}
		for _, d := range action.Diagnostics {
			complaints = append(complaints, fmt.Sprintf("%v: %s", action.Package.Fset.Position(d.Pos), d.Message))
		}
	}
	slices.SortFunc(complaints, cmp.Compare)
	return complaints, nil
}
