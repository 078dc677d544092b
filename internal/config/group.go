package config

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// accounts are the paths of the files that list the users and groups of this machine.
type accounts struct{ passwd, group string }

var machineAccounts = accounts{"/etc/passwd", "/etc/group"}

// otherMembers returns a text that explains why users other than uid and root may be members of a
// group, or empty if there are no others. The members of a group that is not in /etc/group (LDAP) are
// unknown, so it may have any.
func (a accounts) otherMembers(gid, uid int) string {
	name, members, err := a.members(gid)
	if err != nil {
		return fmt.Sprintf("who is in its group %d cannot be read (%v)", gid, err)
	}
	if name == "" {
		return fmt.Sprintf("its group %d is not in %s, so who is in it is not known", gid, a.group)
	}
	names := map[string]bool{}
	for _, m := range members {
		names[m] = true
	}
	var others []string
	err = records(a.passwd, 4, func(f []string) {
		id, primary := f[2], f[3]
		trusted := id == "0" || id == strconv.Itoa(uid)
		if !trusted && (names[f[0]] || primary == strconv.Itoa(gid)) {
			others = append(others, f[0])
		}
		delete(names, f[0])
	})
	if err != nil {
		return fmt.Sprintf("who is in its group %s cannot be read (%v)", name, err)
	}
	for m := range names { // members that are not in /etc/passwd
		others = append(others, m)
	}
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("its group %s has other members, such as %q", name, others[0])
}

// members returns a group's name and its members by /etc/group. The name is empty if the group is not
// in that file.
func (a accounts) members(gid int) (name string, members []string, err error) {
	err = records(a.group, 3, func(f []string) {
		if f[2] != strconv.Itoa(gid) {
			return
		}
		name = f[0]
		if len(f) > 3 && f[3] != "" {
			members = append(members, strings.Split(f[3], ",")...)
		}
	})
	return name, members, err
}

// records calls do with the fields of each line of a file such as /etc/passwd, whose fields are
// separated by colons. It skips lines with fewer fields, and comments.
func records(file string, fields int, do func([]string)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if r := strings.Split(lines.Text(), ":"); len(r) >= fields && !strings.HasPrefix(r[0], "#") {
			do(r)
		}
	}
	return lines.Err()
}
