//go:build unix

package spec

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
)

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
	a := HostUser{name: u.Username, home: u.HomeDir, Credential: &Credential{UID: uint32(uid), GID: uint32(gid)}}
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
