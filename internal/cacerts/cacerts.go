// Package cacerts finds the CA certificates that the machine trusts, and makes the files and variables
// with which programs in a sandbox trust them too. Of the files that it reads, it returns only
// certificates, never a private key.
package cacerts

import (
	"errors"
	"os"
)

// Collect reads the system's certificates, and the files that the variables of OpenSSL, Node, pip, git
// and others name in the server's own environment. A file that cannot be read is left out, with a note.
// It returns an error if it finds no certificate.
func Collect() (Bundle, error) { return source{"", os.Getenv}.collect() }

// JavaStores returns the paths of the trust stores of the machine's JDKs, without symbolic links, sorted.
// In a sandbox that sees a JDK, Bundle.JavaStore has to be mounted over them. A store that is a symbolic
// link to a path of Bundle.Files is left out: Java finds the right file there.
func JavaStores() []string { return source{"", os.Getenv}.javaStores() }

var errNone = errors.New("no CA certificate was found on this machine: install ca-certificates, or name a file with " +
	"SSL_CERT_FILE")
