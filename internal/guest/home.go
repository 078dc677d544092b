package guest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// home makes a sandbox a place to work in: what is installed lies in the folder
// of PYTHONUSERBASE, which is in the workspace and outlives the sandbox, and Git
// knows who commits. It works on the root given, with the environment of all that
// runs there.
type home struct {
	root string // "/", but in tests
	env  map[string]string
}

// base is where pip, npm and uv install to; empty where the template has none.
func (h home) base() string { return h.env["PYTHONUSERBASE"] }

func (h home) at(path string) string { return filepath.Join(h.root, path) }

// prepare does all of it. What cannot be done is left: the root is an operator's,
// and may have its own ways.
func (h home) prepare(python []string) {
	if h.base() == "" {
		return
	}
	h.folders()
	h.links()
	for _, p := range python {
		h.steerPip(p)
	}
	if len(python) > 0 {
		h.steerUV(python[0])
		h.namePython(python[0])
	}
}

// programs is the last folder of PATH, which is made here (image.Programs).
const programs = "/var/lib/sandlot/bin"

// namePython calls Python "python" too where nothing else is called so, as on a
// Debian as it comes: most of what is written for Python says that.
func (h home) namePython(python string) {
	path := filepath.SplitList(h.env["PATH"])
	if !slices.Contains(path, programs) {
		return
	}
	for _, dir := range path {
		// What is in the workspace comes and goes.
		if dir != programs && !strings.HasPrefix(dir, "/workspace/") && h.has(filepath.Join(dir, "python")) {
			return
		}
	}
	if os.MkdirAll(h.at(programs), 0o755) == nil {
		_ = os.Symlink(python, h.at(filepath.Join(programs, "python")))
	}
}

// folders makes those that must be there: older npm's fail without a folder for
// what is installed globally.
func (h home) folders() {
	if h.base() == "" {
		return
	}
	for _, d := range []string{"bin", "lib"} {
		_ = os.MkdirAll(h.at(filepath.Join(h.base(), d)), 0o755)
	}
}

// links leads ~/.local and Git's settings of the user to what is kept.
func (h home) links() {
	dir := h.env["HOME"]
	if dir == "" || !filepath.IsAbs(dir) {
		return
	}
	targets := map[string]string{".local": h.base(), ".gitconfig": filepath.Join(h.base(), "gitconfig")}
	for name, target := range targets {
		_ = os.Symlink(target, h.at(filepath.Join(dir, name))) // one that is there stays
	}
}

// steerPip makes pip choose the user's base by itself, as it does where it may
// not write beside the interpreter. PIP_USER would do so in virtual environments
// too, and they have no such base.
func (h home) steerPip(python string) {
	prefix := filepath.Dir(filepath.Dir(python))
	if h.has(filepath.Join(prefix, "conda-meta")) {
		return // conda installs there as well
	}
	for _, p := range []string{prefix, "/usr/local"} {
		if p != "/usr" { // where the system's package manager writes
			h.close(filepath.Join(p, "lib/python3*/*-packages"))
		}
	}
	if prefix == "/usr" {
		h.steerSystemPip()
	}
}

// close takes the right to write from folders.
func (h home) close(pattern string) {
	found, _ := filepath.Glob(h.at(pattern))
	for _, d := range found {
		_ = os.Chmod(d, 0o555)
	}
}

// steerSystemPip does it for the Python of a distribution. Where pip and the
// system's package manager have a folder in common, Python's packages of the
// system cannot be installed any more.
func (h home) steerSystemPip() {
	folder := "dist-packages" // Debian
	if h.has("/etc/redhat-release") {
		folder = "site-packages"
	} else if !h.has("/usr/lib/python3/dist-packages") { // Alpine, Arch
		h.close("/usr/lib/python3.*/site-packages")
		return
	}
	found, _ := filepath.Glob(h.at("/usr/lib/python3.*"))
	for _, d := range found {
		own := h.at(filepath.Join("/usr/local/lib", filepath.Base(d), folder))
		if os.MkdirAll(own, 0o755) == nil {
			_ = os.Chmod(own, 0o555)
		}
	}
}

func (h home) has(path string) bool {
	_, err := os.Stat(h.at(path))
	return err == nil
}

var versioned = regexp.MustCompile(`^python(3\.[0-9]+)$`)

// steerUV makes the virtual environment that `uv pip` finds where there is no
// nearer one. It is the user's base in another form: what is installed into it
// goes there.
func (h home) steerUV(python string) {
	real, err := filepath.EvalSymlinks(h.at(python))
	if err != nil {
		return
	}
	m := versioned.FindStringSubmatch(filepath.Base(real))
	dir := h.at("/.venv")
	if _, err := os.Lstat(dir); m == nil || err == nil {
		return
	}
	site := filepath.Join(dir, "lib", m[0], "site-packages")
	if os.MkdirAll(filepath.Join(dir, "bin"), 0o755) != nil || os.MkdirAll(site, 0o755) != nil {
		return
	}
	_ = os.Symlink(python, filepath.Join(dir, "bin/python"))
	_ = os.Symlink("python", filepath.Join(dir, "bin/python3"))
	_ = os.WriteFile(filepath.Join(site, "_sandlot.py"), []byte(uvSite), 0o644)
	_ = os.WriteFile(filepath.Join(site, "sandlot.pth"), []byte("import _sandlot\n"), 0o644)
	config := fmt.Sprintf("home = %s\ninclude-system-site-packages = true\nversion = %s.0\n",
		filepath.Dir(python), m[1])
	_ = os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(config), 0o644)
}

const uvSite = `# What is installed into this environment goes to the user's base.
import os, sysconfig
base = os.environ.get("PYTHONUSERBASE")
for name in ("venv", "posix_venv", "posix_prefix", "posix_local") if base else ():
    scheme = sysconfig._INSTALL_SCHEMES.get(name)
    if scheme:
        packages = base + "/lib/python{py_version_short}/site-packages"
        scheme.update(purelib=packages, platlib=packages, scripts=base + "/bin", data=base)
`

// gitMark begins what the agent writes into Git's settings of the system.
const gitMark = "# Sandlot: who commits where nothing else is set.\n"

const gitSettings = `%s[user]
	name = %s
	email = %s
[init]
	defaultBranch = main
[safe]
	directory = *
[core]
	excludesFile = /etc/gitignore
%s%s`

// git writes Git's settings of the system, which count least, before those that
// the root has itself.
func (h home) git(id *agentv1.Identity) {
	// What is there may be anybody's: no link is followed, and no pipe waited for.
	file, err := os.OpenFile(h.at("/etc/gitconfig"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxGit {
		return
	}
	own, err := io.ReadAll(io.LimitReader(file, maxGit))
	if err != nil {
		return
	}
	if before, rest, ok := bytes.Cut(own, []byte(gitMark)); ok && len(before) == 0 {
		_, own, _ = bytes.Cut(rest, []byte(gitMark))
	}
	text := fmt.Appendf(nil, gitSettings, gitMark, quoted(id.Name), quoted(id.Email), gitMark, own)
	if file.Truncate(0) == nil {
		_, _ = file.WriteAt(text, 0)
	}
	ignore, err := os.OpenFile(h.at("/etc/gitignore"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, _ = ignore.WriteString("# What pip and npm installed.\n/.local/\n")
		ignore.Close()
	}
}

// maxGit is more than Git's settings of a system are long, in bytes.
const maxGit = 64 << 10

// quoted is a value in Git's settings.
func quoted(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, wire.UTF8(s))
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// pythons are the programs of a table of languages that are Python's, the first
// for itself first.
func pythons(languages []*agentv1.Language) (found []string) {
	for _, l := range languages {
		if l.Driver != "python" || len(l.Command) == 0 || slices.Contains(found, l.Command[0]) {
			continue
		}
		if filepath.IsAbs(l.Command[0]) {
			found = append(found, l.Command[0])
		}
	}
	return found
}

// quiet adds NO_COLOR to an environment that says nothing of colours: nobody sees
// those of a program that writes to a pipe.
func quiet(env map[string]string) {
	for _, name := range []string{"NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"} {
		if _, said := env[name]; said {
			return
		}
	}
	env["NO_COLOR"] = "1"
}
