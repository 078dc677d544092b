package hub

import (
	"sandlot/internal/builtin"
	"sandlot/internal/servers"
)

// The results of tools and operations, for edges that return them too.
type (
	ServerInfo = servers.Info

	SessionList = builtin.SessionList
	SessionRow  = builtin.Session
	ServerList  = builtin.ServerList
	ServerRow   = builtin.ServerRow

	SnapshotList     = builtin.SnapshotList
	SnapshotRow      = builtin.Snapshot
	SnapshotRestored = builtin.SnapshotRestored
	Forked           = builtin.Forked
)
