package wsl

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// utf16Text is how programs of Windows write a text.
func utf16Text(text string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(text)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

// script writes a program of the shell in the place of one of Windows.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestHere: the distribution is found without its variable, too, as under sudo.
func TestHere(t *testing.T) {
	t.Setenv("WSL_DISTRO_NAME", "")
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if got := Here(t.Context()); got != "" {
		t.Errorf("outside of WSL: %q", got)
	}
	for says, want := range map[string]string{`\\wsl.localhost\Ubuntu-24.04\`: "Ubuntu-24.04",
		`\\wsl$\My Debian\`: "My Debian",
		`\\wsl$\Debian`:     "Debian", `\\server\share\`: "", `C:\x\`: "", "": "", `\\wsl$\a\b`: ""} {
		script(t, filepath.Join(dir, "wslpath"), `[ "$*" = "-w /" ] && printf '%s\n' '`+says+`'`)
		if got := Here(t.Context()); got != want {
			t.Errorf("%s: %q, want %q", says, got, want)
		}
	}
	script(t, filepath.Join(dir, "wslpath"), "exit 1")
	if got := Here(t.Context()); got != "" {
		t.Errorf("wslpath fails, and: %q", got)
	}
	t.Setenv("WSL_DISTRO_NAME", "Own")
	if got := Here(t.Context()); got != "Own" {
		t.Errorf("with the variable: %q", got)
	}
}

func TestRoot(t *testing.T) {
	for settings, want := range map[string]string{"": "/mnt/", "[boot]\nsystemd=true\n": "/mnt/",
		"[automount]\r\nroot = /\r\n":                                        "/",
		"[network]\nroot=/x\n[Automount]\nenabled=true\nRoot=\"/windir/\"\n": "/windir/",
		"[automount]\nroot=relative":                                         "/mnt/"} {
		if got := Root(settings); got != want {
			t.Errorf("%q: %s, want %s", settings, got, want)
		}
	}
}

// TestFind: a distribution finds the folders of Windows's user, whose name no code page has.
func TestFind(t *testing.T) {
	root := t.TempDir() + "/"
	script(t, root+"c/Windows/System32/cmd.exe", `[ "$*" = "/U /C set" ] && [ "$PWD" = "`+root+`c" ] && cat env`)
	env := "APPDATA=C:\\Users\\Зоя 😀\\AppData\\Roaming\r\nUserProfile=D:\\Users\\Зоя 😀\r\nX=a=b\r\n"
	if err := os.WriteFile(root+"c/env", utf16Text(env), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Find(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if w.Getenv("x") != "a=b" {
		t.Errorf("a variable is %q", w.Getenv("x"))
	}
	for name, want := range map[string]string{
		`C:\Users\me\AppData\Roaming\Claude\c.json`: "c/Users/me/AppData/Roaming/Claude/c.json",
		w.Getenv("USERPROFILE") + `\.cursor`:        "d/Users/Зоя 😀/.cursor", `C:/x/../y`: "c/y"} {
		if got, err := w.Path(name); err != nil || got != root+want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for _, name := range []string{`\\server\share\x`, `relative`, ``} {
		if got, err := w.Path(name); err == nil {
			t.Errorf("%s is %s", name, got)
		}
	}
	if _, err := Find(t.Context(), t.TempDir()+"/"); err == nil || !strings.Contains(err.Error(), "--file") {
		t.Errorf("without Windows: %v", err)
	}
}

// TestLocate: Windows finds Sandlot in a distribution, after what the user's profile prints.
func TestLocate(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script(t, filepath.Join(dir, Program), `case "$*" in
"--list --quiet") cat `+dir+`/list ;;
"--distribution Ubuntu-24.04 --exec sh -lc "*) echo "Welcome"; echo /home/me/bin/sandlot ;;
*) echo "no such distribution: $*" >&2; exit 1 ;;
esac`)
	if err := os.WriteFile(filepath.Join(dir, "list"), utf16Text("Ubuntu-24.04\r\nempty\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "Ubuntu-24.04"} {
		d, err := Locate(t.Context(), name)
		if err != nil || *d != (Distribution{"Ubuntu-24.04", "/home/me/bin/sandlot"}) {
			t.Errorf("%q: %+v, %v", name, d, err)
		}
	}
	if _, err := Locate(t.Context(), "empty"); err == nil || !strings.Contains(err.Error(), "Ubuntu-24.04, empty") {
		t.Errorf("one without Sandlot: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Locate(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "wsl --install") {
		t.Errorf("without WSL: %v", err)
	}
	want := []string{"--distribution", "D", "--user", "me", "--exec", "/a b/sandlot", "stdio"}
	if got := Arguments("D", "me", "/a b/sandlot", "stdio"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
