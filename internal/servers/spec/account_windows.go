package spec

import (
	"fmt"
	"os/user"
)

// LookupHostUser looks up the user that the settings name. An empty name means the server's own user, who is the only
// one on Windows: another one's password would be needed.
func LookupHostUser(name string) (HostUser, error) {
	if name == "" {
		return HostUser{}, nil
	}
	if u, err := user.Current(); err == nil {
		if named, err := user.Lookup(name); err == nil && named.Uid == u.Uid {
			return HostUser{}, nil
		}
	}
	return HostUser{}, fmt.Errorf("user: on Windows a program runs as the server's own user, and not as %q; leave it "+
		"out, or start the server as that user", name)
}
