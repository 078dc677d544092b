package cacerts

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Bounds of reading: a variable may name any file.
const (
	maxFile  = 8 << 20
	maxRead  = 64 << 20 // of all files
	maxFiles = 4096     // of one folder
	maxCerts = 4096     // of all
	maxCert  = 64 << 10
)

// machine is the file system and environment in which certificates are looked for. root is
// the folder with the file system; it is empty except in tests.
type machine struct {
	root   string
	getenv func(string) string
}

// systemFiles and systemFolders are the paths of crypto/x509, and that of Arch.
var (
	systemFiles = []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Gentoo
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL 6
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/pki/tls/cacert.pem",                           // OpenELEC
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS, RHEL 7
		"/etc/ssl/cert.pem",                                 // Alpine, FreeBSD
		"/usr/local/etc/ssl/cert.pem",                       // FreeBSD
		"/usr/local/share/certs/ca-root-nss.crt",            // FreeBSD, older
		"/etc/ca-certificates/extracted/tls-ca-bundle.pem",  // Arch
	}
	systemFolders = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// shipped are the files and folders with the public list of CAs (Mozilla's) as
// distributions ship it, without what the operator has added.
var shipped = []string{
	"/usr/share/ca-certificates/mozilla",                             // Debian, Alpine, Gentoo
	"/usr/share/ca-certificates/trust-source/mozilla.trust.p11-kit",  // Arch
	"/usr/share/pki/ca-trust-source/ca-bundle.trust.p11-kit",         // Fedora
	"/usr/share/pki/trust/ca-certificates-mozilla.trust.p11-kit",     // SUSE
	"/usr/share/pki/ca-trust-source/ca-bundle.neutral-trust.p11-kit", // Fedora
	"/usr/share/pki/ca-trust-source/ca-bundle.supplement.p11-kit",    // Fedora, older
}

// named are the variables with the path of a file of certificates, or, for some, of a folder.
var named = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE", "CARGO_HTTP_CAINFO", "DENO_CERT", "HTTPLIB2_CA_CERTS",
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "npm_config_cafile", "NPM_CONFIG_CAFILE",
}

// namedFolders are the variables with paths of folders, separated by colons.
var namedFolders = []string{"SSL_CERT_DIR", "GIT_SSL_CAPATH"}

func (m machine) collect() (Bundle, error) {
	found := newSet()
	m.system(found)
	for _, name := range named {
		found.note(name, found.add(m.getenv(name)))
	}
	for _, name := range namedFolders {
		for _, dir := range filepath.SplitList(m.getenv(name)) {
			found.note(name, found.add(dir))
		}
	}
	b := Bundle{certs: found.sorted(), Notes: found.notes}
	if len(b.certs) == 0 {
		return b, errNone
	}
	public := m.shipped()
	b.local = slices.DeleteFunc(slices.Clone(b.certs),
		func(c *x509.Certificate) bool { return public[fingerprintOf(c)] != nil })
	var err error
	b.java, err = javaStore(b.certs)
	return b, err
}

// system adds the certificates of the first system file or folder that has any. The others
// have the same list, or an outdated one.
func (m machine) system(found *set) {
	for _, places := range [][]string{systemFiles, systemFolders} {
		for _, p := range places {
			err := found.add(m.root + p)
			if len(found.certs) > 0 {
				return
			}
			if !errors.Is(err, fs.ErrNotExist) {
				found.note(p, err)
			}
		}
	}
}

// shipped returns the certificates of the public list.
func (m machine) shipped() map[fingerprint]*x509.Certificate {
	public := newSet()
	for _, p := range shipped {
		public.add(m.root + p) // most are missing: each distribution has its own
	}
	return public.certs
}

// set collects the certificates that are found.
type set struct {
	certs map[fingerprint]*x509.Certificate
	done  map[string]bool // paths that were read
	left  int             // bytes that may still be read
	notes []string
}

func newSet() *set {
	return &set{certs: map[fingerprint]*x509.Certificate{}, done: map[string]bool{}, left: maxRead}
}

// note records an error for the log, with the path or variable that it is about.
func (s *set) note(name string, err error) {
	if err != nil {
		s.notes = append(s.notes, name+": "+err.Error())
	}
}

func (s *set) sorted() []*x509.Certificate {
	keys := slices.SortedFunc(maps.Keys(s.certs), func(a, b fingerprint) int { return bytes.Compare(a[:], b[:]) })
	certs := make([]*x509.Certificate, len(keys))
	for i, k := range keys {
		certs[i] = s.certs[k]
	}
	return certs
}

// add adds the certificates of a file, or of the files in a folder, but not of its
// subfolders. A file in a folder that has no certificates is ignored, as OpenSSL does.
func (s *set) add(path string) error {
	if path == "" || s.done[path] { // several variables often have the same file
		return nil
	}
	s.done[path] = true
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return s.addFile(path)
	}
	names, err := list(path)
	for _, name := range names {
		if e := s.addFile(filepath.Join(path, name)); errors.Is(e, errFull) {
			return e
		}
	}
	return err
}

// list returns the names of the files in a folder, sorted.
func list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxFiles)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && len(names) == maxFiles {
		if more, _ := f.Readdirnames(1); len(more) > 0 {
			err = fmt.Errorf("%s: only %d of its files were looked at", dir, maxFiles)
		}
	}
	slices.Sort(names)
	return names, err
}

// addFile adds the certificates of a file. It is an error if it has none.
func (s *set) addFile(path string) error {
	data, err := s.read(path)
	if err != nil {
		return err
	}
	held := false
	for der := range blocks(data) {
		f := fingerprint(sha256.Sum256(der))
		if s.certs[f] != nil { // the same list is in several files
			held = true
			continue
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		if len(s.certs) == maxCerts {
			return errFull
		}
		s.certs[f], held = c, true
	}
	if !held {
		return fmt.Errorf("%s: there is no certificate in PEM form in it", path)
	}
	return nil
}

var errFull = fmt.Errorf("more than %d certificates or %d MiB: the rest is left out", maxCerts, maxRead>>20)

// read returns a regular file's bytes. It does not block on a pipe or a device.
func (s *set) read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if s.left -= len(data); s.left < 0 {
		return nil, errFull
	}
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: larger than %d MiB", path, maxFile>>20)
	}
	return data, err
}

// blocks yields the contents of the certificate blocks in PEM text. It skips keys, broken
// blocks and everything else, and also blocks with headers, as crypto/x509 does.
func blocks(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" || len(block.Headers) != 0 || len(block.Bytes) > maxCert {
				continue
			}
			if !yield(block.Bytes) {
				return
			}
		}
	}
}
