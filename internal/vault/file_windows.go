package vault

import (
	"fmt"
	"os"

	"sandlot/internal/fileacl"
)

// giveToOwner does nothing: the owner of the server's files is the server's user.
func giveToOwner(*os.File, string) error { return nil }

// checkPrivate returns an error if anyone but this user and the administrators can read the key file.
func checkPrivate(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	other, err := fileacl.Others(path, fileacl.Read)
	if err != nil {
		return err
	}
	if other != "" {
		return fmt.Errorf("others can read it (%s): take the right away in the file's properties, and consider a new "+
			"key (sandlot secret rekey), as this one may be known", other)
	}
	return nil
}
