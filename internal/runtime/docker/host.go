package docker

import "log/slog"

// Config says which daemon and folders a Runtime uses, and how it makes containers.
type Config struct {
	// Host is the daemon's address, such as unix:///run/docker.sock. Empty: the one that the docker command uses.
	Host string
	// Context is the name of a context of the docker command, which has the daemon's address. Not with Host.
	Context string
	// OCIRuntime is the daemon's runtime that runs containers, such as "runsc". Empty: the daemon's default.
	OCIRuntime string
	// WritableRoot lets sandboxes write anywhere in their root, and not only in /tmp, home folders and the like.
	WritableRoot bool
	// Files says whether the daemon sees the server's files: FilesAuto, FilesSeparate, or FilesShared, which it also is
	// if empty.
	Files       string
	HasFolders  bool   // the settings share folders of this machine with sandboxes
	Agent       string // path of sandlot-agent; empty: the one in this program, or else AgentBeside
	AgentBeside string // where sandlot-agent may be
	// StateDir is an existing folder for this instance alone. No part of its path is a symbolic link.
	StateDir string
	Log      *slog.Logger
}
