//go:build linux && !mac

package qemu

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// cpio is an archive in the form in which the kernel reads its first file system ("newc"). Equal content gives equal
// archives.
type cpio struct {
	b     bytes.Buffer
	inode int
}

func (c *cpio) folder(name string)                      { c.add(name, 0o40755, 0, 0, nil) }
func (c *cpio) file(name string, mode int, text []byte) { c.add(name, 0o100000|mode, 0, 0, text) }
func (c *cpio) device(name string, major, minor int)    { c.add(name, 0o20600, major, minor, nil) }

func (c *cpio) add(name string, mode, major, minor int, content []byte) {
	c.inode++
	c.b.WriteString("070701")
	for _, n := range []int{c.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name) + 1, 0} {
		fmt.Fprintf(&c.b, "%08x", n)
	}
	c.b.WriteString(name + "\x00")
	c.pad()
	c.b.Write(content)
	c.pad()
}

func (c *cpio) pad() {
	for c.b.Len()%4 != 0 {
		c.b.WriteByte(0)
	}
}

// end returns the archive.
func (c *cpio) end() []byte {
	c.inode = -1
	c.add("TRAILER!!!", 0, 0, 0, nil)
	return c.b.Bytes()
}

func shortHash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}
