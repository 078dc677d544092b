// Package cacerts says which CA certificates the machine trusts, and makes a
// sandbox trust the same. It owns that answer: only certificates ever leave it,
// never a private key or any other part of a file that it read.
package cacerts

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
)

// Bundle is the certificates that one machine trusts, each once, in an order
// that does not depend on where they were found. It is not changed after
// Collect, and any number of goroutines may use it.
type Bundle struct {
	certs []*x509.Certificate
	// local are those that no distribution ships, so that a program which
	// brings the public list itself (Node) lacks only these.
	local []*x509.Certificate
	java  []byte
	// Notes says what was left out, for the operator's log.
	Notes []string
}

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

// Len is the number of certificates.
func (b Bundle) Len() int { return len(b.certs) }

const (
	bundlePath = "etc/ssl/certs/ca-certificates.crt"
	nodePath   = "etc/ssl/certs/node-extra.crt"
	hashedDir  = "etc/ssl/certs/"
)

// bundlePaths are the places where the distributions' programs look for all
// certificates in one file.
var bundlePaths = []string{
	bundlePath,         // Debian, Ubuntu, Alpine, Arch, Gentoo
	"etc/ssl/cert.pem", // Alpine, and OpenSSL's own name
	"etc/ssl/ca-bundle.pem",
	"var/lib/ca-certificates/ca-bundle.pem", // SUSE
	"etc/pki/tls/certs/ca-bundle.crt",       // Fedora
	"etc/pki/tls/cert.pem",
	"etc/pki/tls/cacert.pem",
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"etc/ca-certificates/extracted/tls-ca-bundle.pem", // Arch
}

// javaPaths are the places to which the distributions' JDKs link their store.
var javaPaths = []string{
	"etc/ssl/certs/java/cacerts",                 // Debian, Alpine, Arch
	"etc/pki/java/cacerts",                       // Fedora
	"etc/pki/ca-trust/extracted/java/cacerts",    // Fedora
	"var/lib/ca-certificates/java-cacerts",       // SUSE
	"etc/ca-certificates/extracted/java/cacerts", // Arch
}

// Files are the files of a sandbox, by path without a leading slash. The same
// certificates give the same bytes. The slices are shared: do not write to them.
func (b Bundle) Files() map[string][]byte {
	if len(b.certs) == 0 {
		return nil
	}
	files := map[string][]byte{}
	all := encode(b.certs)
	for _, p := range bundlePaths {
		files[p] = all
	}
	for _, p := range javaPaths {
		files[p] = b.java
	}
	if len(b.local) > 0 {
		files[nodePath] = encode(b.local)
	}
	// OpenSSL looks in a folder by a hash of the name, and on Debian nowhere
	// else when a program was started without our variables.
	for name, c := range hashed(b.certs) {
		files[hashedDir+name] = encode([]*x509.Certificate{c})
	}
	return files
}

// JavaStore is the trust store to mount over each of JavaStores.
func (b Bundle) JavaStore() []byte { return b.java }

// Env is the environment with which programs that bring a list of their own
// use the machine's instead.
func (b Bundle) Env() map[string]string {
	if len(b.certs) == 0 {
		return nil
	}
	env := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE",                    // OpenSSL, Go, uv, rustls
		"PIP_CERT",                         // pip, whose own list counts otherwise
		"REQUESTS_CA_BUNDLE",               // Python's requests, botocore
		"CURL_CA_BUNDLE",                   // a curl that was built elsewhere
		"GIT_SSL_CAINFO",                   // a git that was built elsewhere
		"AWS_CA_BUNDLE",                    // AWS's SDKs and command line
		"CARGO_HTTP_CAINFO",                // cargo's own curl
		"DENO_CERT",                        // Deno
		"HTTPLIB2_CA_CERTS",                // Python's httplib2
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC for Python, Ruby and C++
	} {
		env[name] = "/" + bundlePath
	}
	// With this variable, however small its file, Node reads its whole own
	// list at each start: 30 to 40 ms. So it is set only when there is
	// something that Node does not bring.
	if len(b.local) > 0 {
		env["NODE_EXTRA_CA_CERTS"] = "/" + nodePath
	}
	return env
}

// encode writes certificates in PEM, and nothing else: no name, no comment.
func encode(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a Buffer does not fail
	}
	return out.Bytes()
}

type fingerprint [sha256.Size]byte

func fingerprintOf(c *x509.Certificate) fingerprint { return sha256.Sum256(c.Raw) }

var errNone = errors.New("no CA certificate was found on this machine: install ca-certificates, or name a file with " +
	"SSL_CERT_FILE")
