package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVersion: the built program says which version of gVisor it is, the one in go.mod. An image says so too, and
// gVisor restores only those of its own version.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), gvisorModule+" ")
	want, _, _ := strings.Cut(rest, "\n")
	program := filepath.Join(t.TempDir(), "sandlot-runsc")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || want == "" || !strings.Contains(string(out), "version "+want+"\n") {
		t.Errorf("%q, %v; go.mod has %q", out, err, want)
	}
}
