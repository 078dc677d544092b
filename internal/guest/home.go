package guest

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

// home sets up package managers and Git in a sandbox. Packages are installed in the folder
// PYTHONUSERBASE, which is in the workspace and so outlives the sandbox, and Git gets an author
// for commits.
type home struct {
	root string            // of the file system: "/", but in tests
	env  map[string]string // of all programs
	user *user.User        // of all programs
}

// userBase returns the folder where pip, npm and uv install packages; "": the template has none.
func (h home) userBase() string { return h.env["PYTHONUSERBASE"] }

// inRoot returns a path below the root.
func (h home) inRoot(path string) string { return filepath.Join(h.root, path) }

// prepare sets up everything but Git. Errors are ignored: the root file system may be an
// operator's, where some of it is not possible.
func (h home) prepare(python []string) {
	if h.userBase() == "" {
		return
	}
	h.makeFolders()
	_ = h.user.Do(func() error {
		h.makeLinks()
		for _, p := range python {
			h.configurePip(p)
		}
		return nil
	})
	if len(python) > 0 {
		h.makeUVEnvironment(python[0])
		h.linkPython(python[0])
	}
}

// programsDir is the last folder of PATH. The agent creates it (image.Programs).
const programsDir = "/var/lib/sandlot/bin"

// addSudo adds a command sudo that runs its arguments where there is none, since many instructions begin with it.
func (h home) addSudo() {
	for _, dir := range filepath.SplitList(h.env["PATH"]) {
		if dir != programsDir && !strings.HasPrefix(dir, "/workspace/") && h.exists(filepath.Join(dir, "sudo")) {
			return
		}
	}
	if slices.Contains(filepath.SplitList(h.env["PATH"]), programsDir) && os.MkdirAll(h.inRoot(programsDir), 0o755) == nil {
		_ = os.WriteFile(h.inRoot(filepath.Join(programsDir, "sudo")), []byte(sudo), 0o755)
	}
}

// keepServicesStopped makes packages of Debian start no services when they are installed: nothing starts them in a sandbox
// that wakes, so that whoever wants one starts it.
func (h home) keepServicesStopped() {
	const policy = "/usr/sbin/policy-rc.d"
	if h.exists("/var/lib/dpkg") && h.exists("/usr/sbin") && !h.exists(policy) {
		_ = os.WriteFile(h.inRoot(policy), []byte("#!/bin/sh\nexit 101\n"), 0o755)
	}
}

//go:embed sudo.sh
var sudo string

// linkPython makes the command "python" start Python where there is no such command, as in
// Debian: many instructions for Python use it.
func (h home) linkPython(python string) {
	path := filepath.SplitList(h.env["PATH"])
	if !slices.Contains(path, programsDir) {
		return
	}
	for _, dir := range path {
		// A command in the workspace does not count: it may be removed.
		if dir != programsDir && !strings.HasPrefix(dir, "/workspace/") && h.exists(filepath.Join(dir, "python")) {
			return
		}
	}
	if os.MkdirAll(h.inRoot(programsDir), 0o755) == nil {
		_ = os.Symlink(python, h.inRoot(filepath.Join(programsDir, "python")))
	}
}

// makeFolders makes the folders for installed packages: older versions of npm fail when they
// install a package globally and there is none.
func (h home) makeFolders() {
	if h.userBase() == "" {
		return
	}
	_ = h.user.Do(func() error {
		for _, d := range []string{"bin", "lib"} {
			_ = os.MkdirAll(h.inRoot(filepath.Join(h.userBase(), d)), 0o755)
		}
		return nil
	})
}

// takeFolders makes the workspace, where the runtime has mounted none, and gives it to the user
// where it is not theirs and the agent may do so; a server does that for its own folders. It
// also makes the folder for outputs. Programs of the user cannot replace either folder.
func (h home) takeFolders(workspace, output string) {
	dir := h.inRoot(workspace)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		_ = makeShared(dir, h.user)
	}
	if h.user == nil {
		return
	}
	if st, err := os.Lstat(dir); err == nil && st.IsDir() && st.Sys().(*syscall.Stat_t).Uid != h.user.UID {
		_ = os.Lchown(dir, int(h.user.UID), int(h.user.GID))
	}
	_ = makeShared(h.inRoot(output), h.user)
	if h.user.Do(func() error { return canWrite(dir) }) != nil {
		fmt.Fprintf(os.Stderr, "sandlot-agent: the user %s may not write into %s\n", h.user.Label(), workspace)
	}
}

// homesDir is the folder of homes for users whose image has none.
const homesDir = "/var/lib/sandlot/home"

// userHome returns the home folder of a user other than root: the one that the environment or the
// image says, if the user can write into it, or else one of the agent's.
func (h home) userHome() string {
	for _, dir := range []string{h.env["HOME"], h.user.Home} {
		if filepath.IsAbs(dir) && dir != "/" && h.user.Do(func() error { return canWrite(h.inRoot(dir)) }) == nil {
			return dir
		}
	}
	dir := filepath.Join(homesDir, strconv.FormatUint(uint64(h.user.UID), 10))
	err := makeShared(h.inRoot(homesDir), h.user)
	if err == nil {
		err = h.user.Do(func() error {
			if err := os.Mkdir(h.inRoot(dir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			return canWrite(h.inRoot(dir))
		})
	}
	if err != nil {
		return "/tmp" // a root file system that is read-only
	}
	return dir
}

// canWrite returns nil if this thread may make files in a folder.
func canWrite(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// makeLinks makes ~/.local and ~/.gitconfig symbolic links to the user base, which outlives the
// sandbox.
func (h home) makeLinks() {
	dir := h.env["HOME"]
	if dir == "" || !filepath.IsAbs(dir) {
		return
	}
	targets := map[string]string{".local": h.userBase(), ".gitconfig": filepath.Join(h.userBase(), "gitconfig")}
	for name, target := range targets {
		_ = os.Symlink(target, h.inRoot(filepath.Join(dir, name))) // an existing file stays
	}
}

// configurePip makes pip install into the user base by default, as pip does when it may not write
// to the folder of packages beside the interpreter. PIP_USER would apply to virtual environments,
// too, where pip fails with it.
func (h home) configurePip(python string) {
	prefix := filepath.Dir(filepath.Dir(python))
	if h.exists(filepath.Join(prefix, "conda-meta")) {
		return // conda has to write there
	}
	for _, p := range []string{prefix, "/usr/local"} {
		if p != "/usr" { // there the package manager of the distribution has to write
			h.makeReadOnly(filepath.Join(p, "lib/python3*/*-packages"))
		}
	}
	if prefix == "/usr" {
		h.configureSystemPip()
	}
}

// makeReadOnly makes the folders that match a pattern read-only.
func (h home) makeReadOnly(pattern string) {
	found, _ := filepath.Glob(h.inRoot(pattern))
	for _, d := range found {
		_ = os.Chmod(d, 0o555)
	}
}

// configureSystemPip does what configurePip does for the Python of a distribution. Where pip and
// the distribution's package manager share a folder, that package manager cannot install Python
// packages any more.
func (h home) configureSystemPip() {
	packages := "dist-packages" // Debian
	if h.exists("/etc/redhat-release") {
		packages = "site-packages"
	} else if !h.exists("/usr/lib/python3/dist-packages") { // Alpine, Arch
		h.makeReadOnly("/usr/lib/python3.*/site-packages")
		return
	}
	found, _ := filepath.Glob(h.inRoot("/usr/lib/python3.*"))
	for _, d := range found {
		folder := h.inRoot(filepath.Join("/usr/local/lib", filepath.Base(d), packages))
		if os.MkdirAll(folder, 0o755) == nil {
			_ = os.Chmod(folder, 0o555)
		}
	}
}

func (h home) exists(path string) bool {
	_, err := os.Stat(h.inRoot(path))
	return err == nil
}

var versionedPython = regexp.MustCompile(`^python(3\.[0-9]+)$`)

// makeUVEnvironment makes the virtual environment /.venv, which `uv pip` uses when it finds no
// nearer one. Packages that are installed into it go to the user base.
func (h home) makeUVEnvironment(python string) {
	dir := h.inRoot("/.venv")
	// A runtime whose root file system is read-only mounts an empty folder there.
	if found, err := os.ReadDir(dir); len(found) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) ||
		makeShared(dir, h.user) != nil {
		return
	}
	made := false
	_ = h.user.Do(func() error { made = h.fillUVEnvironment(dir, python); return nil })
	if !made {
		_ = os.Remove(dir)
	}
}

// fillUVEnvironment makes the virtual environment in its empty folder, and reports whether it did.
func (h home) fillUVEnvironment(dir, python string) bool {
	real, err := filepath.EvalSymlinks(h.inRoot(python))
	if err != nil {
		return false
	}
	m := versionedPython.FindStringSubmatch(filepath.Base(real))
	if m == nil {
		return false
	}
	site := filepath.Join(dir, "lib", m[0], "site-packages")
	if os.MkdirAll(filepath.Join(dir, "bin"), 0o755) != nil || os.MkdirAll(site, 0o755) != nil {
		return false
	}
	_ = os.Symlink(python, filepath.Join(dir, "bin/python"))
	_ = os.Symlink("python", filepath.Join(dir, "bin/python3"))
	_ = os.WriteFile(filepath.Join(site, "_sandlot.py"), []byte(uvSiteModule), 0o644)
	_ = os.WriteFile(filepath.Join(site, "sandlot.pth"), []byte("import _sandlot\n"), 0o644)
	config := fmt.Sprintf("home = %s\ninclude-system-site-packages = true\nversion = %s.0\n",
		filepath.Dir(python), m[1])
	_ = os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(config), 0o644)
	return true
}

const uvSiteModule = `# What is installed into this environment goes to the user's base.
import os, sysconfig
base = os.environ.get("PYTHONUSERBASE")
for name in ("venv", "posix_venv", "posix_prefix", "posix_local") if base else ():
    scheme = sysconfig._INSTALL_SCHEMES.get(name)
    if scheme:
        packages = base + "/lib/python{py_version_short}/site-packages"
        scheme.update(purelib=packages, platlib=packages, scripts=base + "/bin", data=base)
`

// gitMark is the line before and after what the agent writes into /etc/gitconfig.
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

// configureGit writes settings into /etc/gitconfig, which user and repository settings override.
// Settings that the file has already follow, and override them, too.
func (h home) configureGit(id *agentv1.Identity) {
	// Code of the user may have replaced the file: follow no link, and wait for no pipe.
	file, err := os.OpenFile(h.inRoot("/etc/gitconfig"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxGitConfig {
		return
	}
	existing, err := io.ReadAll(io.LimitReader(file, maxGitConfig))
	if err != nil {
		return
	}
	if before, rest, ok := bytes.Cut(existing, []byte(gitMark)); ok && len(before) == 0 {
		_, existing, _ = bytes.Cut(rest, []byte(gitMark))
	}
	text := fmt.Appendf(nil, gitSettings, gitMark, gitQuote(id.Name), gitQuote(id.Email), gitMark, existing)
	if file.Truncate(0) == nil {
		_, _ = file.WriteAt(text, 0)
	}
	ignore, err := os.OpenFile(h.inRoot("/etc/gitignore"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, _ = ignore.WriteString(wire.GitIgnore)
		ignore.Close()
	}
}

// maxGitConfig bounds the size of /etc/gitconfig, in bytes.
const maxGitConfig = 64 << 10

// gitQuote quotes a value for Git's settings.
func gitQuote(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, wire.UTF8(s))
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// pythonPrograms returns the programs of the languages whose driver is python, in the order of
// the table.
func pythonPrograms(languages []*agentv1.Language) (found []string) {
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

// setNoColor sets NO_COLOR in an environment without a variable about colors.
func setNoColor(env map[string]string) {
	for _, name := range []string{"NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"} {
		if _, isSet := env[name]; isSet {
			return
		}
	}
	env["NO_COLOR"] = "1"
}
