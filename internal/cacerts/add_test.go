package cacerts

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"testing"
)

// What makes a sandbox trust one more CA has this one, and the bundle's in Java's store.
func TestAdd(t *testing.T) {
	b, err := Collect()
	if err != nil {
		t.Fatal(err)
	}
	ca := encode([]*x509.Certificate{b.certs[0]}) // any
	a, err := b.Add(ca)
	if err != nil {
		t.Fatal(err)
	}
	files := b.Files()
	for _, path := range append(a.Bundles, a.JavaStores...) {
		if files[path[1:]] == nil || !filepath.IsAbs(path) {
			t.Errorf("a sandbox has no %s", path)
		}
	}
	for path, text := range a.Files {
		if !IsHashedName(path) || !bytes.Equal(text, ca) || !bytes.Equal(files[path[1:]], ca) {
			t.Errorf("%s is not the name by which OpenSSL finds it", path)
		}
	}
	if len(a.Java) <= len(b.JavaStore()) || len(a.Bundles) == 0 || len(a.JavaStores) == 0 || len(a.Files) != 1 {
		t.Errorf("%d bytes for Java, %d and %d paths, %d files", len(a.Java), len(a.Bundles), len(a.JavaStores),
			len(a.Files))
	}
	for what, text := range map[string][]byte{"nothing": nil, "no certificate": pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: []byte("x")})} {
		if _, err := b.Add(text); err == nil {
			t.Errorf("%s is added", what)
		}
	}
}
