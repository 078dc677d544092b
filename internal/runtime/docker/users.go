package docker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// CanRunAs implements sandbox.Users. The server is the user of a rootless daemon: it could neither make a
// workspace belong to another one, nor remove that one's files.
func (r *Runtime) CanRunAs() error {
	ctx, cancel := context.WithTimeout(r.ctx, checkTimeout)
	defer cancel()
	if d, err := r.ask(ctx); err == nil && d.isRootless {
		return errors.New("the Docker daemon is rootless, and a server that is not root cannot remove another " +
			"user's files")
	}
	return nil
}

// HostUser implements sandbox.Users.
func (r *Runtime) HostUser(ctx context.Context, u image.User) (uid, gid int, err error) {
	d, err := r.ask(ctx)
	if err != nil {
		return 0, 0, r.explain(err)
	}
	uid, gid = d.hostIDs(u)
	return uid, gid, nil
}

// RootIsCapable implements sandbox.Users. On the host's kernel root has no capabilities.
func (r *Runtime) RootIsCapable(*image.Template) bool { return false }

// hostIDs returns the ids on the host of a user of a sandbox.
func (d daemon) hostIDs(u image.User) (uid, gid int) {
	if d.isRootless { // there are no other users (CanRunAs)
		return os.Geteuid(), os.Getegid()
	}
	return d.uid + int(u.UID), d.gid + int(u.GID)
}

// checkUser returns an error if the daemon's user is another one than the server's. Sandboxes could not use the
// server's folders, nor could the server remove what they write.
func (r *Runtime) checkUser(d daemon) error {
	if !d.isRootless {
		if os.Geteuid() != 0 {
			return fmt.Errorf("%w: the server is not root, and the Docker daemon at %s is; start the server as root, "+
				"use rootless Docker, or set docker.files to auto or separate", sandbox.ErrUnavailable,
				r.client.DaemonHost())
		}
		return nil
	}
	if peer := r.peer(); peer != nil && int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: the Docker daemon at %s is that of the user %d, and rootless; start the server as this "+
			"user, too", sandbox.ErrUnavailable, r.client.DaemonHost(), peer.Uid)
	}
	return nil
}
