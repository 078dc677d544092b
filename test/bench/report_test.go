package main

import "testing"

func TestMerge(t *testing.T) {
	report := merge("", []string{"# Report\n", "## A\n\na\n", "## B\n\nb\n"})
	if want := "# Report\n\n## A\n\na\n\n## B\n\nb\n"; report != want {
		t.Fatalf("a new report is %q, want %q", report, want)
	}
	report = merge(report, []string{"", "## A\n\nnew\n", "## AB\n\nlast\n"})
	if want := "# Report\n\n## A\n\nnew\n\n## B\n\nb\n\n## AB\n\nlast\n"; report != want {
		t.Errorf("the report is %q, want %q", report, want)
	}
}
