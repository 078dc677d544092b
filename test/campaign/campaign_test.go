package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testsOf returns the names of the tests of go's patterns, as written in the sources.
func testsOf(t *testing.T, patterns string) (names []string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", "{{.Dir}}"}, strings.Fields(patterns)...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	definition := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(\w+ \*testing\.T\)`)
	for _, dir := range strings.Fields(string(out)) {
		files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range definition.FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
	}
	return names
}

// Each test of a part exists, so that what `make test` leaves out is run by the campaign.
func TestPartsExist(t *testing.T) {
	for _, p := range parts {
		if p.minutes > 25 {
			t.Errorf("%s takes %d minutes: divide it", p.name, p.minutes)
		}
		for _, f := range p.folders {
			if _, err := os.Stat(filepath.Join("../..", f)); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		}
		for _, s := range p.steps {
			if s.command != nil {
				continue
			}
			there := testsOf(t, s.packages)
			for _, name := range s.tests {
				if !slices.Contains(there, name) {
					t.Errorf("%s: %s has no test %s", p.name, s.packages, name)
				}
			}
		}
	}
}

// What is skipped is skipped in the packages of its step alone: no test elsewhere has the same name.
func TestSkippedIsRunElsewhere(t *testing.T) {
	for stage, packages := range map[string]string{"unit": "./internal/...", "whole": "./test/..."} {
		skip := regexp.MustCompile(skipped(stage))
		var runs []string
		for _, p := range parts {
			for _, s := range p.steps {
				if s.command == nil && !s.longer {
					for _, name := range testsOf(t, s.packages) {
						if slices.Contains(s.tests, name) {
							runs = append(runs, name)
						}
					}
				}
			}
		}
		for _, name := range testsOf(t, packages) {
			if i := slices.Index(runs, name); i >= 0 {
				runs = slices.Delete(runs, i, i+1)
			} else if skip.MatchString(name) {
				t.Errorf("%s is skipped by the stage %s, and no part runs it", name, stage)
			}
		}
	}
}

// CONTRIBUTING.md has the table of parts.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), table()) {
		t.Errorf("CONTRIBUTING.md has another table of parts than `go run ./test/campaign parts` prints:\n%s", table())
	}
}

func TestReport(t *testing.T) {
	r := &record{dir: t.TempDir()}
	if err := r.stage("one", exec.Command("true")); err != nil {
		t.Fatal(err)
	}
	if err := r.stage("two", exec.Command("false")); err == nil || !strings.Contains(err.Error(), "two") {
		t.Errorf("a stage that fails: %v", err)
	}
	events := `{"Action":"fail","Package":"sandlot/test","Test":"TestA","Elapsed":1.5}
{"Action":"pass","Package":"sandlot/test","Test":"TestA","Elapsed":1}
{"Action":"pass","Package":"sandlot/test","Test":"TestDocker/each/Code","Elapsed":7}
{"Action":"pass","Package":"sandlot/test","Test":"TestDocker/each/Code/test","Elapsed":7}
{"Action":"pass","Package":"sandlot/test","Test":"TestB/sub","Elapsed":9}
{"Action":"fail","Package":"sandlot/test","Test":"TestC","Elapsed":1}
not JSON
`
	if err := os.WriteFile(filepath.Join(r.dir, "whole.json"), []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := r.report(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`two .*FAILED`, `7\.0  test TestDocker/each/Code\n`, `2\.5  test TestA\n`,
		`FAILED AT THE FIRST ATTEMPT(.*\n)+ +test TestA\n$`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the report has no %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "TestB/sub") || strings.Contains(out.String(), "/test\n") {
		t.Errorf("the report names a test twice:\n%s", out.String())
	}
}

func TestTouched(t *testing.T) {
	p := part{folders: []string{"internal/api"}}
	for file, want := range map[string]bool{"internal/api/x.go": true, "internal/apix/x.go": false, "x": false} {
		if p.touched([]string{file}) != want {
			t.Errorf("%s: %t", file, !want)
		}
	}
}
