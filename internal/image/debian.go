package image

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sandlot/internal/dpkg"
)

// DebianHost reports whether the machine's programs come from packages of Debian or Ubuntu, and its package manager is there.
func DebianHost() bool {
	for _, file := range []string{dpkg.Dir + "/status", "/usr/bin/dpkg", "/usr/bin/apt-get"} {
		if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// addDebian makes the machine's folders a part of the root file system, so that packages can be installed over them, and
// adds what the distribution has in /etc and everybody may know: files of settings that nobody changed, without
// which some programs do not start, and the users and groups of every Debian.
func (t *Template) addDebian() {
	if !DebianHost() {
		return
	}
	for i := range t.Binds {
		t.Binds[i].Graft = true
	}
	// Here pip installs what a user can write, which root always can: it would be lost with the sandbox. Where the folder is
	// read-only, pip installs into the workspace.
	folders, _ := filepath.Glob(libraries)
	for _, dir := range folders {
		if real, err := filepath.EvalSymlinks(dir); err == nil && real == dir && InUsr(dir) {
			t.Binds = append(t.Binds, Bind{Source: dir, Target: dir})
		}
	}
	t.Env["DEBIAN_FRONTEND"] = "noninteractive"
	files := map[string][]byte{
		"etc/apt/apt.conf.d/95sandlot":  []byte(aptSettings),
		"etc/dpkg/dpkg.cfg.d/95sandlot": []byte("force-unsafe-io\npath-exclude=/usr/share/man/*\n"),
	}
	for _, name := range []string{"auth", "account", "password", "session", "session-noninteractive"} {
		kind, _, _ := strings.Cut(name, "-")
		files["etc/pam.d/common-"+name] = []byte(kind + " required pam_permit.so\n") // nobody has a password here
	}
	t.Links["var/run"], t.Links["var/lock"] = "../run", "../run/lock"
	t.Folders = append(t.Folders, "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/apt/periodic",
		"var/cache/apt/archives/partial", "var/cache/debconf", "var/lib/ucf/cache", "var/log/apt", "var/mail", "var/spool",
		"var/lib/misc", "var/backups", "var/lib/systemd", "var/lib/pam", "run/lock", "srv")
	all, err := dpkg.Read(dpkg.Dir)
	if err != nil {
		return
	}
	public := slices.DeleteFunc(all, func(p dpkg.Package) bool { return !p.IsDistributions() })
	for name, text := range dpkg.Conffiles(public) {
		// The agent writes a file of its own there (guest.linkTools); those of /etc/pam.d ask for passwords, and those of apt
		// tell programs of a desktop.
		if !t.covers("/"+name) && path.Base(name) != "sitecustomize.py" && path.Dir(name) != "etc/pam.d" &&
			path.Dir(name) != "etc/apt/apt.conf.d" {
			files[name] = text
		}
	}
	for _, name := range dpkg.Folders(dpkg.Dir, public) {
		if !t.covers("/"+name) && !below(t.Links, name) {
			t.Folders = append(t.Folders, name)
		}
	}
	scripts := dpkg.UserScripts(dpkg.Dir, public)
	for _, name := range []string{"passwd", "group"} {
		master, masterErr := os.ReadFile("/usr/share/base-passwd/" + name + ".master")
		list, err := os.ReadFile("/etc/" + name)
		if masterErr == nil && err == nil {
			// The password of root is empty there: x says that it is elsewhere, where there is none.
			master = bytes.Replace(master, []byte("root::0:"), []byte("root:x:0:"), 1)
			files["etc/"+name] = dpkg.Users(list, master, scripts)
		}
	}
	maps.Copy(files, t.Files)
	t.Files = files
}

// libraries matches the folders in which Debian's pip installs.
const libraries = "/usr/local/lib/python3.*/dist-packages"

// IsLibrary reports whether a mount of the template host is one of the folders in which Debian's pip installs. A sandbox
// does without one that is gone: an upgrade of the machine removes those of an older Python.
func IsLibrary(target string) bool {
	is, _ := path.Match(libraries, target)
	return is
}

// InUsr reports whether the folder of a file or folder of the machine is in the file system of /usr: sandboxes see nothing of
// another one that is mounted there, and nothing can be mounted over what they do not see.
func InUsr(path string) bool { return device(filepath.Dir(path)) == device("/usr") }

// HasArchive reports whether the template has lists of a distribution's archive, and a database of what of it is installed.
func (t *Template) HasArchive() bool {
	return slices.ContainsFunc(t.Binds, func(b Bind) bool { return b.Graft && b.Target == dpkg.Dir })
}

// below reports whether a path is a link, or below one.
func below(links map[string]string, name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if _, link := links[name]; link {
			return true
		}
	}
	return false
}

// covers reports whether a path is in a folder of the machine that the template has.
func (t *Template) covers(path string) bool {
	for _, b := range t.Binds {
		if path == b.Target || strings.HasPrefix(path, b.Target+"/") {
			return true
		}
	}
	return false
}

// aptSettings: a sandbox is one user's, so that nothing is gained by a user of apt's own. What was not fetched is an error.
// Documents of changes and suggestions are for people.
const aptSettings = `APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
DPkg::Options { "--force-confdef"; "--force-confold"; };
DPkg::Use-Pty "false";
`
