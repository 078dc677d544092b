package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// As runs a program as another user of the sandbox, in place of this process. Args are the user, as USER or USER:GROUP,
// each a name or a number, and the program with its arguments. It returns an exit code if it fails: 125 where it cannot
// become the user, 126 and 127 as a shell.
func As(args []string) int {
	fail := func(code int, format string, a ...any) int {
		fmt.Fprintf(os.Stderr, "sandlot: "+format+"\n", a...)
		return code
	}
	if len(args) < 2 {
		return fail(125, "usage: %s %s USER[:GROUP] COMMAND [ARGUMENT...]", wire.AgentPath, wire.AsCommand)
	}
	a, err := findAccount(args[0])
	if err == nil {
		err = a.become()
	}
	if err != nil {
		return fail(125, "%v", err)
	}
	path, err := exec.LookPath(args[1])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return fail(127, "%s: command not found", args[1])
	}
	return fail(126, "%s: %v", args[1], unix.Exec(path, args[1:], os.Environ()))
}

// account is a user of a sandbox as /etc/passwd and /etc/group say.
type account struct {
	uid, gid   int
	groups     []int
	name, home string // "": it has none
}

// findAccount finds USER or USER:GROUP. A number need not be in /etc/passwd: its group is then the same number.
func findAccount(who string) (a account, err error) {
	name, group, given := strings.Cut(who, ":")
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(strings.TrimPrefix(name, "#"))
	}
	number, notNumber := strconv.ParseUint(strings.TrimPrefix(name, "#"), 10, 31)
	switch {
	case err == nil:
		a = account{name: u.Username, home: u.HomeDir}
		a.uid, _ = strconv.Atoi(u.Uid)
		a.gid, _ = strconv.Atoi(u.Gid)
		ids, _ := u.GroupIds()
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				a.groups = append(a.groups, n)
			}
		}
	case notNumber == nil:
		a = account{uid: int(number), gid: int(number)}
	default:
		return a, fmt.Errorf("there is no user %q in /etc/passwd; useradd makes one", name)
	}
	if !given {
		return a, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		g, err = user.LookupGroupId(group)
	}
	number, notNumber = strconv.ParseUint(group, 10, 31)
	switch {
	case err == nil:
		a.gid, _ = strconv.Atoi(g.Gid)
	case notNumber == nil:
		a.gid = int(number)
	default:
		return a, fmt.Errorf("there is no group %q in /etc/group; groupadd makes one", group)
	}
	return a, nil
}

// become makes this process one of the account, with its variables.
func (a account) become() error {
	if a.uid == os.Getuid() && a.gid == os.Getgid() {
		return nil
	}
	err := syscall.Setgroups(append([]int{a.gid}, a.groups...))
	if err == nil {
		err = syscall.Setresgid(a.gid, a.gid, a.gid)
	}
	if err == nil {
		err = syscall.Setresuid(a.uid, a.uid, a.uid)
	}
	if err != nil {
		return fmt.Errorf("the programs of this sandbox cannot become another user than %d (%w): only root can, in a "+
			"new sandbox of the runtime gvisor with the setting capabilities: root", os.Getuid(), err)
	}
	for name, value := range map[string]string{"USER": a.name, "LOGNAME": a.name, "HOME": a.home} {
		if value == "" {
			value = map[string]string{"HOME": "/"}[name]
		}
		if value == "" {
			os.Unsetenv(name)
		} else {
			os.Setenv(name, value)
		}
	}
	return nil
}
