package cacerts

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"strings"

	"software.sslmate.com/src/go-pkcs12"
)

// Bundle has the CA certificates that a machine trusts, each once. The same certificates are in the same
// order, wherever they were found. Any number of goroutines may use a Bundle: it does not change after
// Collect.
type Bundle struct {
	certs []*x509.Certificate
	// nonPublic are the certificates that are not on the public list of CAs. Node has that list itself,
	// and lacks only these.
	nonPublic []*x509.Certificate
	java      []byte // the trust store for Java
	// Notes says which files and certificates were left out and why, for the operator's log.
	Notes []string
}

// Len returns the number of certificates.
func (b Bundle) Len() int { return len(b.certs) }

const (
	bundlePath = "etc/ssl/certs/ca-certificates.crt"
	nodePath   = "etc/ssl/certs/node-extra.crt"
	hashedDir  = "etc/ssl/certs/"
)

// bundlePaths are the paths at which programs of the distributions look for a file with all certificates.
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

// javaPaths are the paths to which the trust stores of the distributions' JDKs are symbolic links.
var javaPaths = []string{
	"etc/ssl/certs/java/cacerts",                 // Debian, Alpine, Arch
	"etc/pki/java/cacerts",                       // Fedora
	"etc/pki/ca-trust/extracted/java/cacerts",    // Fedora
	"var/lib/ca-certificates/java-cacerts",       // SUSE
	"etc/ca-certificates/extracted/java/cacerts", // Arch
}

// Files returns the files for a sandbox, by path without a leading slash. Equal bundles have equal files.
// The caller must not change the slices.
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
	if len(b.nonPublic) > 0 {
		files[nodePath] = encode(b.nonPublic)
	}
	// OpenSSL finds a certificate in a folder by a hash of its name. On Debian it looks
	// nowhere else if a program was started without the variables of Env.
	for name, c := range hashedNames(b.certs) {
		files[hashedDir+name] = encode([]*x509.Certificate{c})
	}
	return files
}

// JavaStore returns the trust store that has to be mounted over each path of JavaStores.
func (b Bundle) JavaStore() []byte { return b.java }

// Env returns the environment variables for a sandbox. They make programs that have their own list of CAs
// use the machine's list.
func (b Bundle) Env() map[string]string {
	if len(b.certs) == 0 {
		return nil
	}
	env := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE",                    // OpenSSL, Go, uv, rustls
		"PIP_CERT",                         // pip, which else uses its own list
		"REQUESTS_CA_BUNDLE",               // Python's requests, botocore
		"CURL_CA_BUNDLE",                   // a curl that another distribution built
		"GIT_SSL_CAINFO",                   // a git that another distribution built
		"AWS_CA_BUNDLE",                    // AWS's SDKs and command line
		"CARGO_HTTP_CAINFO",                // cargo's own curl
		"DENO_CERT",                        // Deno
		"HTTPLIB2_CA_CERTS",                // Python's httplib2
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC for Python, Ruby and C++
	} {
		env[name] = "/" + bundlePath
	}
	// If this variable is set, Node parses its own list at each start, which takes 30 to 40 ms. So it is
	// set only if that list lacks a certificate.
	if len(b.nonPublic) > 0 {
		env["NODE_EXTRA_CA_CERTS"] = "/" + nodePath
	}
	return env
}

// encode returns certificates in PEM, without names and comments.
func encode(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // writing to a Buffer cannot fail
	}
	return out.Bytes()
}

type fingerprint [sha256.Size]byte

func fingerprintOf(c *x509.Certificate) fingerprint { return sha256.Sum256(c.Raw) }

// javaStore returns a trust store (PKCS #12). It is neither encrypted nor signed: Java opens its
// default store without a password, skips encrypted entries, and would then trust no
// certificate. The store also opens with the usual password "changeit", as there is nothing
// to check. The JDK's own store has had this form since version 18; Java 8 reads it too.
func javaStore(certs []*x509.Certificate) ([]byte, error) {
	entries := make([]pkcs12.TrustStoreEntry, len(certs))
	for i, c := range certs {
		entries[i] = pkcs12.TrustStoreEntry{Cert: c, FriendlyName: alias(c)}
	}
	return pkcs12.Passwordless.EncodeTrustStoreEntries(entries, "")
}

// alias returns the name of a certificate's entry in a trust store. Names must be unique, and
// some CAs have several certificates of one name, so part of the fingerprint is in it.
func alias(c *x509.Certificate) string {
	name := cmp.Or(c.Subject.CommonName,
		strings.Join(append(c.Subject.OrganizationalUnit, c.Subject.Organization...), " "))
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	f := fingerprintOf(c)
	return name[:min(len(name), 64)] + "-" + hex.EncodeToString(f[:8])
}
