//go:build !linux || mac

package socket

import (
	"fmt"
	"path/filepath"

	"sandlot/internal/agent/wire"
)

// maxAddress is how long the address of a socket may be, in bytes.
const maxAddress = 103

// address returns the address of the socket in a folder, which is its path.
func address(dir string) (name string, done func(), err error) {
	name = filepath.Join(dir, wire.Socket)
	if len(name) > maxAddress {
		return "", nil, fmt.Errorf("the path %s is too long for a socket: it may have %d bytes; name a state folder with "+
			"a shorter one", name, maxAddress)
	}
	return name, func() {}, nil
}
