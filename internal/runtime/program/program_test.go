package program

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	other := append([]byte(nil), own...)
	binary.LittleEndian.PutUint16(other[18:], map[string]uint16{"amd64": 183, "arm64": 62}[runtime.GOARCH])
	dir := t.TempDir()
	put := func(name string, data []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	here := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for _, c := range []struct{ what, path, machine, want string }{
		{"this program", self, here, ""},
		{"by Go's name", self, runtime.GOARCH, ""},
		{"an unknown machine", self, "riscv64", ""},
		{"no name", self, "", ""},
		{"another processor", put("other", other, 0o755), here, "is built for "},
		{"another processor, and what to do", put("agent", other, 0o755), here,
			"GOARCH=" + runtime.GOARCH + " go build"},
		{"nothing", filepath.Join(dir, "none"), here, "run `make build`"},
		{"a folder", dir, here, "run `make build`"},
		{"not executable", put("plain", own, 0o644), here, "run `make build`"},
		{"a program for macOS", put("mach", []byte("\xcf\xfa\xed\xfe0123456789abcdef"), 0o755), here,
			"not a program for Linux"},
		{"empty", put("empty", nil, 0o755), here, "not a program for Linux"},
	} {
		err := Check(c.path, c.machine)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}
