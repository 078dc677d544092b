package usage

// Upload is a write that takes a while. What is not in the workspace yet counts until Close, however often the
// workspace is measured meanwhile. A nil *Upload counts for no quota.
type Upload struct {
	disk   *Disk
	coming int64 // the part of disk.coming that is this upload's
	unsent int64 // what has not been sent to the sandbox
}

// onTheWay is how many bytes of an upload may have been sent, and not be in the file yet.
const onTheWay = 8 << 20

// Upload makes so many bytes count that arrive later.
func (d *Disk) Upload(bytes int64) *Upload {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.coming += bytes
	return &Upload{disk: d, coming: bytes, unsent: bytes}
}

// Sent says that so many more bytes have been sent to the sandbox.
func (u *Upload) Sent(bytes int64) {
	if u == nil {
		return
	}
	u.disk.mu.Lock()
	defer u.disk.mu.Unlock()
	u.unsent -= bytes
	u.arrive(u.coming - max(u.unsent, 0) - onTheWay)
}

// Done says that all is in the file.
func (u *Upload) Done() {
	if u == nil {
		return
	}
	u.disk.mu.Lock()
	defer u.disk.mu.Unlock()
	u.arrive(u.coming)
}

// arrive makes bytes count as written. The caller holds the disk's mu.
func (u *Upload) arrive(bytes int64) {
	bytes = min(max(bytes, 0), u.coming)
	u.coming -= bytes
	u.disk.coming -= bytes
	u.disk.added += bytes
}

// Close ends the upload: what has not arrived does not count any more. It may be called more than once.
func (u *Upload) Close() {
	if u == nil {
		return
	}
	u.disk.mu.Lock()
	defer u.disk.mu.Unlock()
	u.disk.coming -= u.coming
	u.coming = 0
}
