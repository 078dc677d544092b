package hub

import "sandlot/internal/builtin"

// The lists that tools return, for edges that return them too.
type (
	SessionList = builtin.SessionList
	SessionRow  = builtin.Session
	ServerList  = builtin.ServerList
	ServerRow   = builtin.ServerRow

	SnapshotList     = builtin.SnapshotList
	SnapshotRow      = builtin.Snapshot
	SnapshotRestored = builtin.SnapshotRestored
	Forked           = builtin.Forked
)
