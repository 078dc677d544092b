//go:build unix

package config

import (
	"fmt"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sandlot/internal/fault"
	"sandlot/internal/pathwalk"
)

// checkStateFolder returns a fault if root is to use another user's state folder, or one into which others have put
// something: they choose what runs.
func checkStateFolder(dir string) error {
	st, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil // whoever uses a folder that is not there makes it, or says what is wrong
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 {
		return foreignFolder(dir, sys.Uid)
	}
	if st.Mode().Perm()&0o022 == 0 {
		return nil
	}
	if st.Mode()&os.ModeSticky != 0 {
		return fault.New(fault.Configuration, "the state folder %s is for the files of all users, "+
			"who could then choose what "+
			"runs as root: name a folder that only root uses with --state-dir", fault.Printable(dir, 200))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && !pathwalk.IsOwn(st) {
			return fault.New(fault.Configuration, "users other than root can write the state folder %s, and %s in it is "+
				"another user's, who could choose what runs as root: name another folder with --state-dir, or take this "+
				"one over (chown -R root, chmod 700) if you know what is in it", fault.Printable(dir, 200),
				fault.Name(e.Name(), 100))
		}
	}
	return nil // a server makes it private
}

// plainWord matches words that a shell needs no quotes for.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)

func foreignFolder(dir string, uid uint32) error {
	name := fmt.Sprintf("'#%d'", uid)
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil && plainWord.MatchString(u.Username) {
		name = u.Username
	}
	words := slices.Clone(os.Args)
	if !slices.Contains(words, dir) { // it was named by a variable, which sudo does not pass on
		words = slices.Insert(words, 1, "--state-dir", dir)
	}
	command := strings.Join(words, " ")
	if slices.ContainsFunc(words, func(word string) bool { return !plainWord.MatchString(word) }) {
		command = "sandlot --state-dir " + fault.Printable(dir, 200) + " …"
	}
	return fault.New(fault.Configuration, "the state folder %s is another user's, whose settings would run as root: run "+
		"this as that user, with `sudo -u %s %s`; if the folder is to be root's, take it over (chown -R root)",
		fault.Printable(dir, 200), name, command)
}
