package spec

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"
)

// HostUser is the user of the host as whom a program runs that is not in a sandbox. The
// zero value is the server's own user.
type HostUser struct {
	name, home string
	Credential *syscall.Credential // nil: the server's own user
}

// errRoot: a server that runs as root starts no program as root unless the settings name root.
var errRoot = errors.New("where: host, and this server runs as root: name the user of this machine that the program " +
	"runs as, such as user: nobody (user: root, if it has to be root)")

// LookupHostUser looks up the user that the settings name. An empty name means the server's
// own user, and is an error if that is root: root has to be named.
func LookupHostUser(name string) (HostUser, error) {
	if name == "" {
		if os.Getuid() == 0 {
			return HostUser{}, errRoot
		}
		return HostUser{}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return HostUser{}, fmt.Errorf("user: this machine has no user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, gerr); err != nil {
		return HostUser{}, fmt.Errorf("user: %q: %w", name, err)
	}
	if int(uid) == os.Getuid() {
		return HostUser{}, nil
	}
	if os.Getuid() != 0 {
		return HostUser{}, fmt.Errorf("user: only a server that runs as root can run a program as %q; leave it out, "+
			"and the program runs as the server's own user", name)
	}
	a := HostUser{name: u.Username, home: u.HomeDir, Credential: &syscall.Credential{Uid: uint32(uid),
		Gid: uint32(gid)}}
	groups, err := u.GroupIds()
	if err != nil {
		return HostUser{}, fmt.Errorf("user: the groups of %q cannot be read: %w", name, err)
	}
	for _, g := range groups {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil && !slices.Contains(a.Credential.Groups, uint32(id)) {
			a.Credential.Groups = append(a.Credential.Groups, uint32(id))
		}
	}
	return a, nil
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
