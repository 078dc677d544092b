package imagetest

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestBaseArchive: the archive has the programs that tests use. `make tools` runs this test, so that the archive is
// made while other things are compiled.
func TestBaseArchive(t *testing.T) {
	f, err := os.Open(BaseArchive(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	missing := map[string]bool{"usr/bin/python3": true, "usr/bin/pip3": true, "usr/bin/node": true,
		"usr/local/bin/npm": true, "usr/bin/bash": true, "usr/bin/ps": true, "usr/bin/git": true}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(missing, strings.TrimPrefix(h.Name, "./"))
	}
	if len(missing) > 0 {
		t.Errorf("the archive lacks %v", missing)
	}
}
