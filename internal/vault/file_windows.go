package vault

import (
	"fmt"
	"os"

	"sandlot/internal/fileacl"
)

// giveToOwner does nothing: the owner of the server's files is the server's user.
func giveToOwner(*os.File, string) error { return nil }

// CheckPrivate returns an error if anyone but this user and the administrators can read a file with a key or a secret.
func CheckPrivate(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	other, err := fileacl.Others(path, fileacl.Read)
	if err != nil {
		return err
	}
	if other != "" {
		return fmt.Errorf("others can read it (%s), so it may be known: take the right away in the file's properties, and "+
			"take a new one", other)
	}
	return nil
}
