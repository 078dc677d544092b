package release

// Abandon leaves an upgrade as its process does that is killed.
func Abandon(u *Upgrade) { u.lock.Close() }
