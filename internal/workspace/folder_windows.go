package workspace

import (
	"errors"
	"os"
)

// openFolder opens a folder in an open one. It follows no link.
func openFolder(parent *os.File, name string) (*os.File, error) {
	root, err := os.OpenRoot(parent.Name())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return nil, err
	}
	return root.Open(name)
}

// owner returns an error: files of Windows belong to no user of a sandbox.
func owner(path string) (uid, gid int, err error) {
	return 0, 0, errors.New("on Windows, a folder of the server cannot belong to a user of a sandbox; keep the sandboxes' " +
		"files with the daemon (docker.files: separate): " + path)
}
