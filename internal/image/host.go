package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/dpkg"
)

// ErrNoInterpreter says that of this machine's programs no template can be made.
var ErrNoInterpreter = errors.New("no interpreter was found: install python3, node or bash, or let `sandbox_image` " +
	"name an image")

// Host returns the template "host". Its sandboxes have the machine's own programs, read-only, and nothing
// else of the machine: no home folders, settings, secrets or processes.
func Host() (*Template, error) {
	t := &Template{Name: "host", Links: map[string]string{}, Files: map[string][]byte{}, Provides: []string{"base"},
		Env: map[string]string{"PATH": systemPath, "TERM": "xterm-256color"}}
	if err := t.addSystemFolders(); err != nil {
		return nil, err
	}
	t.addFontConfig()
	t.addDebian()
	t.addInterpreters()
	if len(t.Languages) == 0 {
		return nil, ErrNoInterpreter
	}
	t.AddDefaultEnv()
	return t, nil
}

// addSystemFolders adds the folders with programs and libraries, and the files of /etc that they need.
func (t *Template) addSystemFolders() error {
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(d)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if st.Mode()&os.ModeSymlink == 0 {
			t.Binds = append(t.Binds, Bind{Source: d, Target: d})
			continue
		}
		target, err := os.Readlink(d)
		if err != nil {
			return err
		}
		t.Links[strings.TrimPrefix(d, "/")] = target
	}
	for _, f := range hostEtc {
		t.addFromHost(f, f)
	}
	return nil
}

// hostEtc are the files and folders of /etc that programs of the machine need.
var hostEtc = []string{"/etc/alternatives", "/etc/ssl/certs", "/etc/ld.so.cache", "/etc/ld.so.conf",
	"/etc/ld.so.conf.d", "/etc/os-release", "/etc/fonts", "/etc/mime.types", "/etc/localtime"}

// HostVersion identifies the files of the machine that Host copies: it changes when one of them is replaced.
func HostVersion() string {
	var all strings.Builder
	for _, f := range append([]string{dpkg.Dir + "/status"}, hostEtc...) {
		if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
			fmt.Fprintln(&all, f, st.Size(), st.ModTime().UnixNano())
		}
	}
	return all.String()
}

// maxCopied bounds a file of the machine that is copied, in bytes. The largest, ld.so.cache, has some 100 KB.
const maxCopied = 8 << 20

// addFromHost adds what is at a path of the machine, if it can be read. A folder is bound. A file is copied: package
// managers replace files by renaming (ldconfig does so after most installations), and a bound one would then be a file
// without a name, with which no sandbox can be written to the disk.
func (t *Template) addFromHost(path, target string) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	f, err := os.OpenFile(resolved, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		t.Binds = append(t.Binds, Bind{Source: resolved, Target: target})
	case st.Mode().IsRegular():
		content, err := io.ReadAll(io.LimitReader(f, maxCopied+1))
		if err == nil && len(content) <= maxCopied {
			t.Files[strings.TrimPrefix(target, "/")] = content
		}
	}
}

// addFontConfig adds a configuration of fontconfig if the machine has none: without it, programs that draw text
// print warnings of fontconfig among their output.
func (t *Template) addFontConfig() {
	for _, b := range t.Binds {
		if b.Target == "/etc/fonts" {
			return
		}
	}
	t.Files["etc/fonts/fonts.conf"] = []byte(`<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>/usr/local/share/fonts</dir>
  <dir prefix="xdg">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
`)
}

// addInterpreters adds the languages whose interpreters the machine has.
func (t *Template) addInterpreters() {
	if p := t.findInterpreter("python3", "import sys; print(sys.executable); print(sys.base_prefix)", "-c"); p != "" {
		t.addLanguages("python", p)
		t.Provides = append(t.Provides, "python")
		t.Warm = append(t.Warm, "python")
	}
	if p := t.findInterpreter("node", "console.log(process.execPath); console.log('')", "-e"); p != "" {
		t.addLanguages("node", p)
		t.Provides = append(t.Provides, "node")
	}
	if p := t.findInterpreter("bash", "", ""); p != "" {
		t.addLanguages("bash", p)
	}
	if isELF("/usr/local/go/bin/go") { // where Go's installer puts it
		t.Env["PATH"] += ":/usr/local/go/bin"
	}
	if _, err := os.Stat("/bin/sh"); err == nil {
		t.addLanguages("sh", "/bin/sh")
	}
}

func (t *Template) addLanguages(interpreter, program string) {
	t.Languages = append(t.Languages, LanguagesOf(interpreter, program)...)
}

// findInterpreter returns the path of an interpreter in the sandbox, or "". If it is not in one of the system's
// folders, find searches PATH and adds the interpreter's installation to the root file system. The
// program in PATH may be the shim of a version manager, so it is run with a question: a script that
// prints the path of the interpreter and of its installation.
func (t *Template) findInterpreter(name, script, flag string) string {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/bin"} {
		if p := filepath.Join(dir, name); isELF(p) {
			return p
		}
	}
	path, err := exec.LookPath(name)
	if err != nil || script == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, flag, script)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	lines := strings.Split(string(out), "\n")
	if err != nil || len(lines) < 2 {
		return ""
	}
	resolved, err := filepath.EvalSymlinks(lines[0])
	if err != nil || !isELF(resolved) {
		return ""
	}
	prefix := lines[1]
	if prefix == "" {
		prefix = filepath.Dir(filepath.Dir(resolved))
	}
	if prefix, err = filepath.EvalSymlinks(prefix); err != nil || !strings.HasPrefix(resolved, prefix+"/") ||
		len(strings.Split(prefix, "/")) < 4 {
		return "" // such a short prefix, as /opt or /usr, would contain more than the interpreter
	}
	t.Binds = append(t.Binds, Bind{Source: prefix, Target: prefix})
	t.Env["PATH"] = filepath.Dir(resolved) + ":" + t.Env["PATH"]
	return resolved
}

// isELF reports whether path is an executable ELF file, after symbolic links: not a script.
func isELF(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return false
	}
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && bytes.Equal(magic, []byte("\x7fELF"))
}
