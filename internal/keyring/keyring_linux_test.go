package keyring

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A bus that is not there is no keyring without the key: who takes it for one makes another key. The keyring itself is
// tested with the whole program.
func TestNoBus(t *testing.T) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	_, err := Keyring{}.Get("test")
	for _, err := range []error{err, Keyring{}.Set("test", make([]byte, 32)), Keyring{}.Remove("test")} {
		if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "secrets.key_file") {
			t.Errorf("%v", err)
		}
	}
}
