package keyring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const hint = "DBUS_SESSION_BUS_ADDRESS is its D-Bus session, where gnome-keyring, KWallet or KeePassXC has the name " +
	"org.freedesktop.secrets"

// available returns an error if there is no D-Bus session. The library would start one that outlives this process.
func available() error {
	if a := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); a != "" && a != "autolaunch:" {
		return nil
	}
	for _, name := range []string{"bus", "dbus-session"} {
		if _, err := os.Stat(fmt.Sprintf("/run/user/%d/%s", os.Getuid(), name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.New("this process is in no D-Bus session")
}
