package guest

import (
	"cmp"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
)

// TestSudo: sudo runs its arguments, with the options that people give it, and has the agent become another user.
func TestSudo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "sudo")
	agent := filepath.Join(dir, "agent")
	for file, text := range map[string]string{path: strings.ReplaceAll(sudo, wire.AgentPath, agent),
		agent: "#!/bin/sh\necho \"$@\"\n"} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"sudo echo a 'b  c'":                  "a b  c\n",
		"sudo -E -H -n echo a":                "a\n",
		"sudo -nE -- echo -n":                 "",
		"sudo -u root echo a":                 "a\n",
		"sudo -u " + me.Username + " echo a":  "a\n",
		"sudo --user=root echo a":             "a\n",
		"sudo -u postgres echo a":             "as postgres env echo a\n",
		"sudo -upostgres -g 5 A=1 echo a":     "as postgres:5 env A=1 echo a\n",
		"sudo --user=postgres -- echo a":      "as postgres env echo a\n",
		"sudo -iu postgres echo a":            "as postgres env " + cmp.Or(os.Getenv("SHELL"), "/bin/sh") + " -c echo a\n",
		"sudo -nHu postgres -i echo a":        "as postgres env " + cmp.Or(os.Getenv("SHELL"), "/bin/sh") + " -c echo a\n",
		"sudo A=1 B='x y' sh -c 'echo $A$B'":  "1x y\n",
		"sudo -p prompt -S echo a </dev/null": "a\n",
		"sudo -i echo a":                      "a\n",
		"sudo -s 'echo $((1+2))'":             "3\n",
		"echo 'echo 5' | sudo -s":             "5\n",
		"echo text | sudo tee " + dir + "/f":  "text\n",
		"sudo -v; echo $?":                    "0\n",
		"sudo; echo $?":                       "usage: sudo",
		"sudo sh -c 'exit 7'; echo $?":        "7\n",
		"sudo sudo echo a":                    "a\n",
	} {
		cmd := exec.Command("/bin/sh", "-c", line)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput()
		if got := string(out); got != want && !(strings.HasSuffix(want, "\n") == false && want != "" && strings.HasPrefix(got, want)) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestAddSudo: a sudo of the root file system stays.
func TestAddSudo(t *testing.T) {
	t.Parallel()
	for own, want := range map[string]bool{"": true, "/usr/bin/sudo": false, "/workspace/.local/bin/sudo": true} {
		h := home{root: t.TempDir(), env: map[string]string{"PATH": "/workspace/.local/bin:/usr/bin:" + programsDir}}
		if own != "" {
			if err := os.MkdirAll(filepath.Dir(h.inRoot(own)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(h.inRoot(own), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		h.addSudo()
		st, err := os.Stat(h.inRoot(programsDir + "/sudo"))
		if (err == nil) != want || err == nil && st.Mode().Perm() != 0o755 {
			t.Errorf("%q: %v %v", own, st, err)
		}
	}
}
