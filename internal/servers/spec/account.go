package spec

import (
	"os"
	"slices"
)

// HostUser is the user of the host as whom a program runs that is not in a sandbox. The
// zero value is the server's own user.
type HostUser struct {
	name, home string
	Credential *Credential // nil: the server's own user
}

// Credential has the ids of a user of the host.
type Credential struct {
	UID, GID uint32
	Groups   []uint32
}

// CheckHostUser returns an error if no program can run on the host as the user that the
// settings name.
func CheckHostUser(name string) error {
	_, err := LookupHostUser(name)
	return err
}

// HostUserHome returns the home folder of the user that the settings name; empty: it is the
// server's own user.
func HostUserHome(name string) string {
	a, _ := LookupHostUser(name)
	return a.home
}

// passedEnv are the variables of the server's environment that a program on the host
// gets. The others may hold secrets.
var passedEnv = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM",
	"TMPDIR",
	"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}

// userEnv are those of these variables that depend on the user. A program that runs as
// another user does not get them.
var userEnv = []string{"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME",
	"XDG_DATA_HOME", "XDG_RUNTIME_DIR"}

// Environment returns the environment of a program before the variables of its settings are added.
func (a HostUser) Environment() []string {
	env := []string{}
	for _, name := range passedEnv {
		if v, ok := os.LookupEnv(name); ok && (a.Credential == nil || !slices.Contains(userEnv, name)) {
			env = append(env, name+"="+v)
		}
	}
	if a.Credential != nil {
		env = append(env, "HOME="+a.home, "USER="+a.name, "LOGNAME="+a.name)
	}
	return env
}

// DefaultDir returns the working directory of a program whose settings name none; empty: the
// server's own.
func (a HostUser) DefaultDir() string {
	if a.Credential == nil {
		return ""
	}
	if st, err := os.Stat(a.home); err == nil && st.IsDir() {
		return a.home
	}
	return "/"
}
