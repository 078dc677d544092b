package tree

import "io/fs"

// diskBytes returns the size of a file: Windows does not say with its name how much of the disk it uses.
func diskBytes(info fs.FileInfo) int64 { return info.Size() }

// isOwn reports whether a file may belong to this user. Windows does not say it with the file's name.
func isOwn(fs.FileInfo) bool { return true }
