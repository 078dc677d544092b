package logfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFile: all lines are in the file and the earlier one, none is cut, and neither is larger than the limit.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "log")
	f, err := open(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 29) + "\n"
	for range 7 { // 3 in each file
		if n, err := f.Write([]byte(line)); err != nil || n != len(line) {
			t.Fatal(n, err)
		}
	}
	for _, want := range []struct {
		name  string
		lines int
	}{{path, 1}, {path + ".1", 3}} {
		text, err := os.ReadFile(want.name)
		if err != nil || string(text) != strings.Repeat(line, want.lines) {
			t.Errorf("%s: %v, %q", want.name, err, text)
		}
		if st, err := os.Stat(want.name); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", want.name, st.Mode(), err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Write([]byte(line)); err == nil || f.Close() != nil {
		t.Error("wrote to a closed log:", err)
	}
	// The next server goes on in the same file.
	if f, err = open(path, 100); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != line+line {
		t.Errorf("%q", text)
	}
	// A line that is larger than a file is whole all the same.
	if n, err := f.Write([]byte(strings.Repeat(line, 5))); err != nil || n != 5*len(line) {
		t.Error(n, err)
	}
}

// TestFullFolder: a file that cannot be renamed goes on.
func TestFullFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := open(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 3 {
		if _, err := f.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(path); len(text) != 30 {
		t.Errorf("%q", text)
	}
}

// TestCrash: the log says why the process ended.
func TestCrash(t *testing.T) {
	if path := os.Getenv("LOGFILE_CRASH"); path != "" {
		f, err := open(path, 10)
		if err == nil {
			_, err = f.Write([]byte("before, and more than the limit\n"))
		}
		if err == nil {
			_, err = f.Write([]byte("in the second file\n"))
		}
		if err != nil {
			os.Exit(0)
		}
		panic("the cause of the crash")
	}
	path := filepath.Join(t.TempDir(), "log")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestCrash$")
	cmd.Env = append(os.Environ(), "LOGFILE_CRASH="+path)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("did not crash:\n%s", out)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "in the second file\n") ||
		!strings.Contains(string(text), "the cause of the crash") ||
		!strings.Contains(string(text), "logfile_test.go") {
		t.Errorf("%v\n%s", err, text)
	}
}
