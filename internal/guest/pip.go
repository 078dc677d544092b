package guest

import (
	"bufio"
	_ "embed"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

//go:embed pip_by_uv.py
var pip string

// pipProgram is the program of the agent's pip, which cells run as well (drivers/notebook.py).
const pipProgram = "/var/lib/sandlot/pip-by-uv"

// addPip adds a pip that installs by uv, before the pips of the system. The folders before it in PATH are those of what
// the user has installed.
func (h home) addPip() {
	folders := filepath.SplitList(h.env["PATH"])
	n := slices.Index(folders, wire.FirstPrograms)
	if n < 0 || os.MkdirAll(h.inRoot(wire.FirstPrograms), 0o755) != nil {
		return
	}
	_ = os.WriteFile(h.inRoot(pipProgram), []byte(strings.Replace(pip, "@BASE@", h.userBase(), 1)), 0o644)
	for _, name := range []string{"pip", "pip3"} {
		for _, dir := range folders[n+1:] {
			if strings.HasPrefix(dir, "/workspace/") || !h.exists(path.Join(dir, name)) {
				continue // what is in the workspace may go
			}
			// Another kind of pip, as that of pyenv, stays.
			if python := pythonOf(h.inRoot(path.Join(dir, name))); python != "" {
				text := "#!" + python + "\n" + `import runpy
runpy.run_path("` + pipProgram + `", run_name="__main__")
`
				_ = os.WriteFile(h.inRoot(path.Join(wire.FirstPrograms, name)), []byte(text), 0o755)
			}
			break
		}
	}
}

// pythonOf returns the Python that runs a script, as the script says it; empty: it is not one of Python's.
func pythonOf(script string) string {
	f, err := os.OpenFile(script, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	python, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "#!")
	if python = strings.TrimSpace(python); !ok || !path.IsAbs(python) || strings.ContainsAny(python, " \t") ||
		!strings.HasPrefix(path.Base(python), "python") {
		return ""
	}
	return python
}
