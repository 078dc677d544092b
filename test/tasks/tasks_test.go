package tasks

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// No number stands twice, and the tests of the tasks elsewhere exist.
func TestNumbers(t *testing.T) {
	tests := map[string]bool{}
	for _, pattern := range []string{"../*_test.go", "../../internal/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
				tests[string(m[1])] = true
			}
		}
	}
	seen := map[int]bool{}
	for n, name := range Elsewhere {
		seen[n] = true
		if !tests[name] {
			t.Errorf("task %d: there is no %s", n, name)
		}
	}
	for _, task := range All {
		if seen[task.Number] {
			t.Errorf("task %d stands twice", task.Number)
		}
		seen[task.Number] = true
	}
}
