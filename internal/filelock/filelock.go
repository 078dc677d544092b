// Package filelock owns the locks of files against other processes. Closing a file unlocks it, as does the end of its
// process. A lock does not keep the file from being read or written.
package filelock
