// Package keyring has keys in the keyring of the user who runs this process: that of the Secret Service on Linux, the
// Keychain on macOS, the Credential Manager on Windows. What is there is a text, so that people can store and read it
// with the system's own programs.
package keyring

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/zalando/go-keyring"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// service is the name under which all entries are. The entry's name is that of the user in the keyring's words.
const service = "sandlot"

// timeout is how long an act may take. A locked keyring asks its user for a password meanwhile.
const timeout = 30 * time.Second

// Keyring is the user's keyring.
type Keyring struct{}

// Get returns the key with a name, or fs.ErrNotExist.
func (Keyring) Get(name string) (key []byte, err error) {
	var text string
	err = do(func() (err error) {
		text, err = keyring.Get(service, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if key, err = secret.ParseKey(text); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the entry %s of the keyring (service %s) is not a key: it %v",
			name, service, err)
	}
	return key, nil
}

// Set stores a key under a name, and replaces an earlier one.
func (k Keyring) Set(name string, key []byte) error {
	return do(func() error { return keyring.Set(service, name, hex.EncodeToString(key)) })
}

// Remove removes a key, if it is there.
func (Keyring) Remove(name string) error {
	err := do(func() error { return keyring.Delete(service, name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// do does something with the keyring. The library has no way to cancel it: a goroutine that waits for the keyring's
// user longer than timeout stays until the user answers, or the process ends. Servers use the keyring at their start
// alone, and end when it does not answer.
func do(act func() error) error {
	if err := available(); err != nil {
		return unusable(err)
	}
	done := make(chan error, 1)
	go func() {
		defer func() { // the library panics if the bus is closed while a keyring asks its user
			if p := recover(); p != nil {
				done <- fmt.Errorf("it ended: %v", p)
			}
		}()
		done <- act()
	}()
	select {
	case err := <-done:
		if errors.Is(err, keyring.ErrNotFound) {
			return fs.ErrNotExist
		}
		if err != nil && strings.Contains(err.Error(), "failed to unlock") {
			err = fmt.Errorf("it is locked (%w)", err)
		}
		if err != nil {
			return unusable(err)
		}
		return nil
	case <-time.After(timeout):
		return unusable(fmt.Errorf("it did not answer within %s, and may wait for its user's password", timeout))
	}
}

// unusable does not wrap the cause: a bus that does not exist is no key that does not exist.
func unusable(cause error) error {
	return fault.New(fault.Configuration, "the keyring cannot be used: %v. Start the server in the session of a "+
		"user whose keyring is unlocked (%s); a server outside of a user's session takes the key from a file "+
		"(secrets.key_file) or from its environment (SANDLOT_SECRETS_KEY)", cause, hint)
}
