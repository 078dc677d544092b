package servers

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"sandlot/internal/fault"
)

// account is the user of the server's machine as whom a program runs that is not
// in a sandbox.
type account struct {
	name, home string
	credential *syscall.Credential // nil: the server's own
}

// errRoot refuses what a server that runs as root was not told to do.
var errRoot = errors.New("where: host, and this server runs as root: name the user of this machine that the program runs as, such as user: nobody (user: root, if it has to be root)")

// accountOf finds the user that the settings name; empty is the server's own,
// unless that is root, which has to be named.
func accountOf(name string) (account, error) {
	if name == "" {
		if os.Getuid() == 0 {
			return account{}, errRoot
		}
		return account{}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return account{}, fmt.Errorf("user: this machine has no user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, gerr); err != nil {
		return account{}, fmt.Errorf("user: %q: %w", name, err)
	}
	if int(uid) == os.Getuid() {
		return account{}, nil
	}
	if os.Getuid() != 0 {
		return account{}, fmt.Errorf("user: only a server that runs as root can run a program as %q; leave it out, and the program runs as the server's own user", name)
	}
	a := account{name: u.Username, home: u.HomeDir, credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	groups, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("user: the groups of %q cannot be read: %w", name, err)
	}
	for _, g := range groups {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil && !slices.Contains(a.credential.Groups, uint32(id)) {
			a.credential.Groups = append(a.credential.Groups, uint32(id))
		}
	}
	return a, nil
}

// CheckUser says why a program of the settings cannot run on the machine as that
// user; empty is no user.
func CheckUser(name string) error {
	_, err := accountOf(name)
	return err
}

// HomeOf is the home folder of a program that runs as that user; empty: it has the
// server's own.
func HomeOf(name string) string {
	a, _ := accountOf(name)
	return a.home
}

// personal are the harmless names that say who the server's user is; another one has
// values of their own, or none.
var personal = []string{"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"}

// environment is what a program gets beside what its settings say.
func (a account) environment() []string {
	env := []string{}
	for _, name := range harmless {
		if v, ok := os.LookupEnv(name); ok && (a.credential == nil || !slices.Contains(personal, name)) {
			env = append(env, name+"="+v)
		}
	}
	if a.credential != nil {
		env = append(env, "HOME="+a.home, "USER="+a.name, "LOGNAME="+a.name)
	}
	return env
}

// folder is where a program starts that was told no other place.
func (a account) folder() string {
	if a.credential == nil {
		return ""
	}
	if st, err := os.Stat(a.home); err == nil && st.IsDir() {
		return a.home
	}
	return "/"
}

// as is the account of a server's program, or a fault that says what to set.
func (s *server) as() (account, error) {
	a, err := accountOf(s.settings.User)
	if err != nil {
		return a, fault.Wrap(fault.Configuration, err, "%s: %v", s.name, err)
	}
	return a, nil
}
