package image

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// String returns the user's name, or the id of one without a name.
func (u User) String() string {
	switch {
	case u.IsRoot():
		return "root"
	case u.Name != "":
		return u.Name
	}
	return strconv.FormatUint(uint64(u.UID), 10)
}

// AsRoot returns the template with root as its user, for a runtime that has no other.
func (t *Template) AsRoot() *Template {
	if t.User.IsRoot() {
		return t
	}
	c, env := *t, maps.Clone(t.Env)
	if env == nil {
		env = map[string]string{}
	}
	if env["HOME"] == t.User.Home {
		env["HOME"] = "/root"
	}
	if env["USER"] == t.User.String() {
		env["USER"] = "root"
	}
	c.User, c.Env = User{}, env
	return &c
}

// Bounds of what counts of an image's files, which may be hostile.
const (
	maxAccountFile = 1 << 20 // bytes of /etc/passwd, and of /etc/group
	maxGroups      = 256
	maxID          = math.MaxInt32 // as Docker has it; the largest number of 32 bits means "no change"
	maxNameLength  = 64
	maxHomeLength  = 1024
)

// ResolveUser returns the user that an image's setting means: "", "NAME", "UID", or one of these
// with ":GROUP" or ":GID", as Docker resolves them: names are looked up in the contents of the
// image's /etc/passwd and /etc/group, and numbers need not be there. With a group the user has no
// further groups. For user 0 it returns the zero User, whatever the group.
func ResolveUser(setting, passwd, group string) (User, error) {
	name, groupName, hasGroup := strings.Cut(setting, ":")
	if setting == "" {
		return User{}, nil
	}
	if name == "" || hasGroup && groupName == "" || len(setting) > 2*maxNameLength {
		return User{}, fmt.Errorf("the image's user %.80q is none: it has to be NAME, UID, NAME:GROUP or UID:GID",
			setting)
	}
	if len(passwd) > maxAccountFile || len(group) > maxAccountFile {
		return User{}, fmt.Errorf("the image's /etc/passwd or /etc/group has more than %d bytes", maxAccountFile)
	}
	u, err := findUser(passwd, name)
	if err != nil || u.IsRoot() {
		return User{}, err
	}
	if hasGroup {
		u.GID, err = findGroup(group, groupName)
	} else if u.Name != "" {
		u.Groups = groupsOf(group, u)
	}
	if err != nil {
		return User{}, err
	}
	return u, nil
}

// findUser returns the user with that name or id.
func findUser(passwd, name string) (User, error) {
	uid, isID := parseID(name)
	for f := range records(passwd, 6) {
		fileUID, ok := parseID(f[2])
		gid, okGroup := parseID(f[3])
		if !ok || !okGroup || f[0] != name && (!isID || fileUID != uid) {
			continue
		}
		u := User{UID: fileUID, GID: gid}
		if validName(f[0]) {
			u.Name = f[0]
		}
		if validHome(f[5]) {
			u.Home = f[5]
		}
		return u, nil
	}
	if !isID {
		return User{}, fmt.Errorf("the image's user %q is not in its /etc/passwd: name another user, or an id", name)
	}
	return User{UID: uid}, nil
}

// findGroup returns the id of the group with that name or id.
func findGroup(group, name string) (uint32, error) {
	for f := range records(group, 3) {
		if gid, ok := parseID(f[2]); ok && f[0] == name {
			return gid, nil
		}
	}
	gid, ok := parseID(name)
	if !ok {
		return 0, fmt.Errorf("the group %q of the image's user is not in its /etc/group: name another one, or an id",
			name)
	}
	return gid, nil
}

// groupsOf returns the further groups of a user.
func groupsOf(group string, u User) (groups []uint32) {
	for f := range records(group, 4) {
		if !slices.Contains(strings.Split(f[3], ","), u.Name) {
			continue
		}
		gid, ok := parseID(f[2])
		if ok && gid != u.GID && !slices.Contains(groups, gid) && len(groups) < maxGroups {
			groups = append(groups, gid)
		}
	}
	return groups
}

// records yields the fields of the lines of a file such as /etc/passwd that have as many.
func records(text string, fields int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(text) {
			f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
			if len(f) >= fields && f[0] != "" && f[0][0] != '#' && !yield(f) {
				return
			}
		}
	}
}

// parseID parses the id of a user or group.
func parseID(s string) (uint32, bool) {
	for _, c := range s {
		if c < '0' || c > '9' { // ParseUint takes "+1"
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n <= maxID
}

// validName reports whether a name can be the value of USER.
func validName(s string) bool {
	return s != "" && len(s) <= maxNameLength &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// validHome reports whether a path can be the value of HOME.
func validHome(s string) bool {
	return path.IsAbs(s) && s != "/" && path.Clean(s) == s && len(s) <= maxHomeLength &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == ':' })
}
