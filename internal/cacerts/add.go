package cacerts

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Addition makes a sandbox that has the files of a bundle trust one more CA. All paths are absolute.
type Addition struct {
	Bundles    []string          // the paths of files to which the CA's text is appended
	Files      map[string][]byte // further files that have it, by path
	Java       []byte            // a trust store with the bundle and the CA
	JavaStores []string          // the paths of stores that it replaces
}

// Add returns the addition for a CA, which is in PEM.
func (b Bundle) Add(ca []byte) (Addition, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return Addition{}, errors.New("there is no certificate in PEM form")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Addition{}, err
	}
	var a Addition
	for _, p := range bundlePaths {
		a.Bundles = append(a.Bundles, "/"+p)
	}
	for _, p := range javaPaths {
		a.JavaStores = append(a.JavaStores, "/"+p)
	}
	hash, err := subjectHash(cert.RawSubject)
	if err != nil {
		return Addition{}, err
	}
	// No other CA has this subject, so none has its hash, but by a chance of one in 2^32.
	a.Files = map[string][]byte{"/" + hashedDir + fmt.Sprintf("%08x.0", hash): encode([]*x509.Certificate{cert})}
	a.Java, err = javaStore(append(slices.Clone(b.certs), cert))
	return a, err
}
