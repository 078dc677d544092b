package image

import (
	"maps"
	"os"
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
	t.Env["DEBIAN_FRONTEND"] = "noninteractive"
	files := map[string][]byte{
		"etc/apt/apt.conf.d/95sandlot":    []byte(aptSettings),
		"etc/dpkg/dpkg.cfg.d/95sandlot":   []byte("force-unsafe-io\npath-exclude=/usr/share/man/*\n"),
		"var/cache/apt/archives/.sandlot": nil, "var/cache/debconf/.sandlot": nil, "var/lib/ucf/cache/.sandlot": nil,
		"var/log/apt/.sandlot": nil, "var/lib/apt/lists/.sandlot": nil, "var/lib/apt/periodic/.sandlot": nil,
		"var/mail/.sandlot": nil, "var/spool/.sandlot": nil, "var/lib/misc/.sandlot": nil, "var/backups/.sandlot": nil,
		"var/lib/systemd/.sandlot": nil, "var/lib/python/.sandlot": nil, "var/lib/pam/.sandlot": nil,
	}
	if packages, err := dpkg.Read(dpkg.Dir); err == nil {
		public := packages[:0:0]
		for _, p := range packages {
			if p.IsDistributions() {
				public = append(public, p)
			}
		}
		for name, text := range dpkg.Conffiles(public) {
			if !t.covers("/" + name) {
				files[name] = text
			}
		}
	}
	for file, from := range map[string]string{"etc/passwd": "passwd.master", "etc/group": "group.master"} {
		if text, err := os.ReadFile("/usr/share/base-passwd/" + from); err == nil {
			// The password of root is empty there: x says that it is elsewhere, where there is none.
			files[file] = []byte(strings.Replace(string(text), "root::0:", "root:x:0:", 1))
		}
	}
	maps.Copy(files, t.Files)
	t.Files = files
}

// HasArchive reports whether the template has lists of a distribution's archive, and a database of what of it is installed.
func (t *Template) HasArchive() bool {
	return slices.ContainsFunc(t.Binds, func(b Bind) bool { return b.Graft && b.Target == dpkg.Dir })
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
Acquire::Retries "2";
DPkg::Options { "--force-confdef"; "--force-confold"; };
DPkg::Use-Pty "false";
`
