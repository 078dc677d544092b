package disk

// Upload is a write that takes a while. What is not in the workspace yet counts until Close, however often the
// workspace is measured meanwhile. A nil *Upload counts for no quota.
type Upload struct {
	use    *Use
	coming int64 // the part of use.coming that is this upload's
	unsent int64 // what has not been sent to the sandbox
}

// onTheWay is how many bytes of an upload may have been sent, and not be in the file yet.
const onTheWay = 8 << 20

// Upload makes so many bytes count that arrive later.
func (u *Use) Upload(bytes int64) *Upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.coming += bytes
	return &Upload{use: u, coming: bytes, unsent: bytes}
}

// Sent says that so many more bytes have been sent to the sandbox.
func (u *Upload) Sent(bytes int64) {
	if u == nil {
		return
	}
	u.use.mu.Lock()
	defer u.use.mu.Unlock()
	u.unsent -= bytes
	u.arrive(u.coming - max(u.unsent, 0) - onTheWay)
}

// Done says that all is in the file.
func (u *Upload) Done() {
	if u == nil {
		return
	}
	u.use.mu.Lock()
	defer u.use.mu.Unlock()
	u.arrive(u.coming)
}

// arrive makes bytes count as written. The caller holds the use's mu.
func (u *Upload) arrive(bytes int64) {
	bytes = min(max(bytes, 0), u.coming)
	u.coming -= bytes
	u.use.coming -= bytes
	u.use.added += bytes
}

// Close ends the upload: what has not arrived does not count any more. It may be called more than once.
func (u *Upload) Close() {
	if u == nil {
		return
	}
	u.use.mu.Lock()
	defer u.use.mu.Unlock()
	u.use.coming -= u.coming
	u.coming = 0
}
