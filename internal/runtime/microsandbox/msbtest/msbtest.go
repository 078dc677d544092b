//go:build linux

// Package msbtest is a program for tests in the place of microsandbox's msb, where no virtual machine runs. It takes what
// the real program takes, by the real one's --help, keeps its machines as that one does, and runs the real agent: in
// gVisor, with the machine's own programs as any image, and with a Unix socket in the place of the vsock.
//
// It proves nothing of a virtual machine: neither its isolation nor its network, nor that the real msb does what is
// asked of it.
package msbtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/image/imagetest"
)

// Version is the version that the fake has, and the real program whose --help it reads.
const Version = "0.7.11"

// Image is an image that the fake's registry has. It has any other, too, but for those below missing.invalid.
const Image = "registry.invalid/sandlot-test/host:1"

// Options say how a fake differs from a msb of Version that works.
type Options struct {
	Version string `json:"version"` // empty: Version
	// Doctor is what `msb doctor` complains of; empty: nothing.
	Doctor string `json:"doctor"`
	// Create is what `msb create` complains of, instead of making a machine; empty: nothing.
	Create string `json:"create"`
	// Log is the machine's log after that.
	Log string `json:"log"`
	// Real and Bin are the real program and the folder of the built programs. Install sets them.
	Real string `json:"real"`
	Bin  string `json:"bin"`
}

const variable = "SANDLOT_TEST_FAKE_MSB"

// Main runs the fake, and ends, if this process was started as one. A test's TestMain calls it.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var o Options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	os.Exit(fake{o, os.Getenv("MSB_HOME")}.main(os.Args[1:]))
}

// Real returns the path of the real msb, which `make tools` installs. It makes no machine where the tests run.
func Real(t testing.TB) string {
	t.Helper()
	path := filepath.Join(imagetest.Tools(t), "msb", "microsandbox", "_bundled", "bin", "msb")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	return path
}

// Install writes a program msb into a folder of its own, and returns its path. bin is the folder of the built programs.
func Install(t testing.TB, bin string, o Options) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Real, o.Bin = Real(t), bin
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "msb")
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	script := "#!/bin/sh\n" + variable + "=" + quote(string(text)) + " exec " + quote(self) + ` "$@"` + "\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Remains lists the machines and processes that a fake has in an MSB_HOME.
func Remains(home string) (found []string) {
	all, _ := filepath.Glob(filepath.Join(home, "fake", "*", "machine.json"))
	found = append(found, all...)
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(line), home+"/") {
			found = append(found, p+": "+strings.ReplaceAll(string(line[:min(len(line), 300)]), "\x00", " "))
		}
	}
	return found
}

// Process returns the id of the process that a machine is; 0: there is none.
func Process(home, name string) int {
	var m machine
	if text, err := os.ReadFile(filepath.Join(home, "fake", name, "machine.json")); err == nil {
		_ = json.Unmarshal(text, &m)
	}
	return m.PID
}

// flag is what --help says of one.
type flag struct {
	long, short string
	value       bool // it takes one
	possible    []string
}

// helpOf asks the real program which flags a command takes.
func helpOf(real string, command ...string) (flags map[string]flag, positional bool, err error) {
	cmd := exec.Command(real, append(slices.Clone(command), "--help")...)
	cmd.Env = []string{"HOME=/nonexistent", "PATH=/usr/bin:/bin", "MSB_HOME=/nonexistent"}
	text, err := cmd.Output()
	if err != nil {
		return nil, false, err
	}
	flags = map[string]flag{}
	last := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Usage:") {
			positional = strings.Contains(strings.ReplaceAll(line, "[OPTIONS]", ""), "[") ||
				strings.Contains(line, "<")
		}
		if values, ok := strings.CutPrefix(line, "[possible values: "); ok && last != "" {
			f := flags[last]
			f.possible = strings.Split(strings.TrimSuffix(values, "]"), ", ")
			flags[last] = f
		}
		if !strings.HasPrefix(line, "-") {
			continue
		}
		var f flag
		spelled, _, _ := strings.Cut(line, "  ")
		for _, part := range strings.FieldsFunc(spelled, func(r rune) bool { return r == ' ' || r == ',' }) {
			switch {
			case strings.HasPrefix(part, "--"):
				f.long, _, _ = strings.Cut(strings.TrimPrefix(part, "--"), "[")
			case strings.HasPrefix(part, "-"):
				f.short = strings.TrimPrefix(part, "-")
			case strings.HasPrefix(part, "<"):
				f.value = true
			}
		}
		if f.long == "" {
			continue
		}
		flags["--"+f.long] = f
		if f.short != "" {
			flags["-"+f.short] = f
		}
		last = "--" + f.long
	}
	return flags, positional, nil
}
