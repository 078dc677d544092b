// Package cacerts finds out which CA certificates the machine trusts, and makes the files and
// variables with which a sandbox trusts the same. It returns only certificates, never a
// private key or any other part of a file that it has read.
package cacerts

import (
	"errors"
	"os"
)

// Collect reads the system's certificates and, in addition, those that the
// variables of OpenSSL, Node, pip, git and others name in the server's own
// environment. What cannot be read is left out, with a note. It is an error if the
// machine trusts no certificate.
func Collect() (Bundle, error) { return source{"", os.Getenv}.collect() }

// JavaStores returns the paths of those trust stores of the machine's JDKs over which
// Bundle.JavaStore must be mounted in a sandbox that sees the JDK. The paths have no
// symbolic links and are sorted. A JDK whose store is a link to a path of Bundle.Files is
// not listed: its Java finds the right file there.
func JavaStores() []string { return source{"", os.Getenv}.javaStores() }

var errNone = errors.New("no CA certificate was found on this machine: install ca-certificates, or name a file with " +
	"SSL_CERT_FILE")
