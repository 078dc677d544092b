package interp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// genericNames are the names by which shells find the program of a driver.
var genericNames = map[string]string{"python": "python3", "node": "node", "bash": "bash"}

// workspace is the folder in which pip, npm and uv install for a user.
const workspace = "/workspace"

// command returns the interpreter's program for an environment: that of the template, or one of its name that the user
// has installed in a folder that PATH has before it. A program that is not in PATH was named by the operator, and stays.
func (i *Interp) command(env []string) []string {
	name, own := genericNames[i.config.Driver], i.config.Command[0]
	if name == "" || len(i.config.Command) != 1 {
		return i.config.Command
	}
	folders, home := filepath.SplitList(valueOf(env, "PATH")), valueOf(env, "HOME")
	at := slices.Index(folders, filepath.Dir(own))
	for _, folder := range folders[:max(at, 0)] {
		if !isBelow(folder, workspace) && !isBelow(folder, home) {
			continue
		}
		path := filepath.Join(folder, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return []string{path}
		}
	}
	return i.config.Command
}

// valueOf returns a variable's value, which is the last one of that name.
func valueOf(env []string, name string) string {
	for _, v := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

func isBelow(path, folder string) bool {
	return filepath.IsAbs(path) && filepath.IsAbs(folder) && folder != "/" && strings.HasPrefix(path+"/", folder+"/")
}
