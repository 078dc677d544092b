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
)

// Bounds of reading: a variable may name any file.
const (
	maxFile  = 8 << 20
	maxRead  = 64 << 20 // of all files
	maxFiles = 4096     // of one folder
	maxCerts = 4096     // of all
	maxCert  = 64 << 10
)

// source is the file system and environment in which certificates are looked for. root is
// the folder with the file system; it is empty except in tests.
type source struct {
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

// publicLists are the files and folders with the public list of CAs (Mozilla's) as
// distributions ship it, without what the operator has added.
var publicLists = []string{
	"/usr/share/ca-certificates/mozilla",                             // Debian, Alpine, Gentoo
	"/usr/share/ca-certificates/trust-source/mozilla.trust.p11-kit",  // Arch
	"/usr/share/pki/ca-trust-source/ca-bundle.trust.p11-kit",         // Fedora
	"/usr/share/pki/trust/ca-certificates-mozilla.trust.p11-kit",     // SUSE
	"/usr/share/pki/ca-trust-source/ca-bundle.neutral-trust.p11-kit", // Fedora
	"/usr/share/pki/ca-trust-source/ca-bundle.supplement.p11-kit",    // Fedora, older
}

// fileVariables are the variables with the path of a file of certificates, or, for some, of a folder.
var fileVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE", "CARGO_HTTP_CAINFO", "DENO_CERT", "HTTPLIB2_CA_CERTS",
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "npm_config_cafile", "NPM_CONFIG_CAFILE",
}

// folderVariables are the variables with paths of folders, separated by colons.
var folderVariables = []string{"SSL_CERT_DIR", "GIT_SSL_CAPATH"}

func (m source) collect() (Bundle, error) {
	found := newCollector()
	m.addSystem(found)
	for _, name := range fileVariables {
		found.note(name, found.add(m.getenv(name)))
	}
	for _, name := range folderVariables {
		for _, dir := range filepath.SplitList(m.getenv(name)) {
			found.note(name, found.add(dir))
		}
	}
	b := Bundle{certs: found.sorted(), Notes: found.notes}
	if len(b.certs) == 0 {
		return b, errNone
	}
	public := m.publicCerts()
	b.nonPublic = slices.DeleteFunc(slices.Clone(b.certs),
		func(c *x509.Certificate) bool { return public[fingerprintOf(c)] != nil })
	var err error
	b.java, err = javaStore(b.certs)
	return b, err
}

// addSystem adds the certificates of the first system file or folder that has any. The others
// have the same list, or an outdated one.
func (m source) addSystem(found *collector) {
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

// publicCerts returns the certificates of the public list.
func (m source) publicCerts() map[fingerprint]*x509.Certificate {
	public := newCollector()
	for _, p := range publicLists {
		public.add(m.root + p) // most are missing: each distribution has its own
	}
	return public.certs
}

// collector collects the certificates that are found.
type collector struct {
	certs     map[fingerprint]*x509.Certificate
	visited   map[string]bool // paths that were read
	bytesLeft int             // bytes that may still be read
	notes     []string
}

func newCollector() *collector {
	return &collector{certs: map[fingerprint]*x509.Certificate{}, visited: map[string]bool{}, bytesLeft: maxRead}
}

// note records an error for the log, with the path or variable that it is about.
func (s *collector) note(name string, err error) {
	if err != nil {
		s.notes = append(s.notes, name+": "+err.Error())
	}
}

func (s *collector) sorted() []*x509.Certificate {
	keys := slices.SortedFunc(maps.Keys(s.certs), func(a, b fingerprint) int { return bytes.Compare(a[:], b[:]) })
	certs := make([]*x509.Certificate, len(keys))
	for i, k := range keys {
		certs[i] = s.certs[k]
	}
	return certs
}

// add adds the certificates of a file, or of the files in a folder, but not of its
// subfolders. A file in a folder that has no certificates is ignored, as OpenSSL does.
func (s *collector) add(path string) error {
	if path == "" || s.visited[path] { // several variables often have the same file
		return nil
	}
	s.visited[path] = true
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return s.addFile(path)
	}
	names, err := fileNames(path)
	for _, name := range names {
		if e := s.addFile(filepath.Join(path, name)); errors.Is(e, errFull) {
			return e
		}
	}
	return err
}

// fileNames returns the names of the files in a folder, sorted.
func fileNames(dir string) ([]string, error) {
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
func (s *collector) addFile(path string) error {
	data, err := s.read(path)
	if err != nil {
		return err
	}
	found := false
	for der := range certBlocks(data) {
		f := fingerprint(sha256.Sum256(der))
		if s.certs[f] != nil { // the same list is in several files
			found = true
			continue
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		if len(s.certs) == maxCerts {
			return errFull
		}
		s.certs[f], found = c, true
	}
	if !found {
		return fmt.Errorf("%s: there is no certificate in PEM form in it", path)
	}
	return nil
}

var errFull = fmt.Errorf("more than %d certificates or %d MiB: the rest is left out", maxCerts, maxRead>>20)

// read returns a regular file's bytes. It does not block on a pipe or a device.
func (s *collector) read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
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
	if s.bytesLeft -= len(data); s.bytesLeft < 0 {
		return nil, errFull
	}
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: larger than %d MiB", path, maxFile>>20)
	}
	return data, err
}

// certBlocks yields the contents of the certificate blocks in PEM text. It skips keys, broken
// blocks and everything else, and also blocks with headers, as crypto/x509 does.
func certBlocks(data []byte) iter.Seq[[]byte] {
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
