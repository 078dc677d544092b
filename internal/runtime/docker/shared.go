package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// checkSource refuses to share a folder of this machine, by its path without links, in which there are the socket of
// the daemon, or of another one like it, even if that one does not run yet, or other sockets of root's: these are
// root's access to the machine. It refuses one that is to be read-only if other file systems are mounted in it: most
// daemons would leave them writable. The error continues a sentence about the folder.
func (r *Runtime) checkSource(source string, readOnly bool) error {
	const advice = "with which a sandbox would be root on this machine; share another folder"
	if isIn(source, "/run") || isIn("/run", source) {
		return errors.New("is the place of the sockets of daemons, " + advice)
	}
	if daemon, isPath := strings.CutPrefix(r.client.DaemonHost(), "unix://"); isPath {
		if resolved, err := filepath.EvalSymlinks(daemon); err == nil {
			daemon = resolved
		}
		if isIn(daemon, source) {
			return fmt.Errorf("is the place of %s, the socket of the Docker daemon, %s", daemon, advice)
		}
	}
	if socket := rootSocketIn(source); socket != "" {
		return fmt.Errorf("has %s in it, a socket of a program of root's, %s", socket, advice)
	}
	if below := mountsBelow(source); readOnly && len(below) > 0 && !r.sealsSubmounts() {
		return fmt.Errorf("has another file system in it, at %s, which would not be read-only; share the folders "+
			"below it one by one, each at a place of its own, or use Docker 25 or newer", below[0])
	}
	return nil
}

// rootSocketIn returns a socket in a folder that a program of root's on this machine has made and has open; "": there
// is none. What sandboxes make is not among them: their sockets are in other network namespaces.
func rootSocketIn(folder string) string {
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
		st, err := os.Lstat(resolved)
		if err != nil || st.Mode()&fs.ModeSocket == 0 {
			continue
		}
		if owner, ok := st.Sys().(*syscall.Stat_t); ok && owner.Uid == 0 {
			return resolved
		}
	}
	return ""
}
