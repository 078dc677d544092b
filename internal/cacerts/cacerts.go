// Package cacerts says which CA certificates the machine trusts, and makes a
// sandbox trust the same. Only certificates leave the package, never a private key or
// any other part of a file that it read.
package cacerts

import (
	"errors"
	"os"
)

// Collect reads the system's certificates and, in addition, those that the
// variables of OpenSSL, Node, pip, git and others name in the server's own
// environment. What cannot be read is left out with a note. A machine that
// trusts nobody is an error.
func Collect() (Bundle, error) { return machine{"", os.Getenv}.collect() }

// JavaStores returns the trust stores of the machine's JDKs that are files of
// their own, as paths without symbolic links, sorted. Java in a sandbox that
// sees one of these JDKs trusts what JavaStore holds only when that is mounted
// over the path. A JDK whose store leads to a path of Files needs nothing and
// is not listed.
func JavaStores() []string { return machine{"", os.Getenv}.javaStores() }

var errNone = errors.New("no CA certificate was found on this machine: install ca-certificates, or name a file with " +
	"SSL_CERT_FILE")
