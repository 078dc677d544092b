package config

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// accountFiles are the paths of the files that list the users and groups of this machine.
type accountFiles struct{ passwd, group string }

var systemAccounts = accountFiles{"/etc/passwd", "/etc/group"}

// otherMembers returns a text that explains why users other than uid and root may be members of a
// group, or empty if there are no others. The members of a group that is not in /etc/group (LDAP) are
// unknown, so it may have any.
func (a accountFiles) otherMembers(gid, uid int) string {
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
	err = readRecords(a.passwd, 4, func(fields []string) {
		id, primary := fields[2], fields[3]
		trusted := id == "0" || id == strconv.Itoa(uid)
		if !trusted && (names[fields[0]] || primary == strconv.Itoa(gid)) {
			others = append(others, fields[0])
		}
		delete(names, fields[0])
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
func (a accountFiles) members(gid int) (name string, members []string, err error) {
	err = readRecords(a.group, 3, func(f []string) {
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

// readRecords calls do with the fields of each line of a file such as /etc/passwd, whose fields are
// separated by colons. It skips lines with fewer fields, and comments.
func readRecords(file string, minFields int, visit func([]string)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if r := strings.Split(lines.Text(), ":"); len(r) >= minFields && !strings.HasPrefix(r[0], "#") {
			visit(r)
		}
	}
	return lines.Err()
}
