package docker

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandlot/internal/proc"
)

// socketPlaces are folders in which daemons have sockets: Docker, Podman, containerd, CRI-O and k3s in /run, and those
// of users in /run/user.
var socketPlaces = []string{"/run", "/var/run", "/var/lib/lxd", "/var/snap/lxd", "/var/lib/incus", "/var/lib/kubelet"}

// checkSource refuses to share a folder of this machine, by its path without links, in which there are the socket of
// the daemon, or of another one like it, even if that one does not run yet, or any socket that a program of this
// machine has open: with it a sandbox may do what the program's user may. It refuses one that is to be read-only if
// other file systems are mounted in it: most daemons would leave them writable. The error continues a sentence about
// the folder.
func (r *Runtime) checkSource(source string, readOnly bool) error {
	const advice = "and a sandbox would be root on this machine with it; share another folder"
	places := socketPlaces
	if own := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(own) {
		places = append(slices.Clone(places), own)
	}
	for _, place := range places {
		if resolved, err := filepath.EvalSymlinks(place); err == nil {
			place = resolved
		}
		switch {
		case isIn(source, place):
			return fmt.Errorf("is in %s, where daemons have their sockets, %s", place, advice)
		case isIn(place, source):
			return fmt.Errorf("contains %s, where daemons have their sockets, %s", place, advice)
		}
	}
	if daemon, isPath := strings.CutPrefix(r.client.DaemonHost(), "unix://"); isPath {
		if resolved, err := filepath.EvalSymlinks(daemon); err == nil {
			daemon = resolved
		}
		if isIn(daemon, source) {
			return fmt.Errorf("contains %s, the socket of the Docker daemon, %s", daemon, advice)
		}
	}
	if socket := openSocketIn(source); socket != "" {
		return fmt.Errorf("contains %s, the socket of a program of this machine: a sandbox could act as the program's "+
			"user; share another folder, or end the program", socket)
	}
	if below := proc.MountsBelow(source); readOnly && len(below) > 0 && !r.sealsSubmounts() {
		return fmt.Errorf("contains another file system, at %s, which would not be read-only; share the folders "+
			"below it one by one, each at a place of its own, or use Docker 25 or newer", below[0])
	}
	return nil
}

// openSocketIn returns a socket in a folder that a program of this machine has made and has open; "": there is none.
// What sandboxes make is not among them: their sockets are in other network namespaces. Whose the socket is does not
// matter: its mode may let everybody use it, and a sandbox's programs may have the id of any user.
func openSocketIn(folder string) string {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return ""
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		_, name, found := strings.Cut(line, " /")
		name = "/" + strings.TrimSuffix(name, "\n")
		if !found || seen[name] {
			continue
		}
		seen[name] = true
		resolved, err := filepath.EvalSymlinks(name)
		if err != nil || !isIn(resolved, folder) {
			continue
		}
		if st, err := os.Lstat(resolved); err == nil && st.Mode()&fs.ModeSocket != 0 {
			return resolved
		}
	}
	return ""
}
