package guest

import (
	"bufio"
	_ "embed"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sandlot/internal/agent/wire"
)

//go:embed pip.py
var pip string

// addPip adds a pip that installs by uv, before the pips of the system. The folders before it in PATH are those of what
// the user has installed.
func (h home) addPip() {
	folders := filepath.SplitList(h.env["PATH"])
	n := slices.Index(folders, wire.FirstPrograms)
	if n < 0 {
		return
	}
	for _, name := range []string{"pip", "pip3"} {
		for _, dir := range folders[n+1:] {
			if python := pythonOf(h.inRoot(path.Join(dir, name))); python != "" {
				if os.MkdirAll(h.inRoot(wire.FirstPrograms), 0o755) == nil {
					_ = os.WriteFile(h.inRoot(path.Join(wire.FirstPrograms, name)), []byte("#!"+python+"\n"+pip), 0o755)
				}
			} else if !h.exists(path.Join(dir, name)) {
				continue
			}
			break // another kind of pip, as that of pyenv, stays
		}
	}
}

// pythonOf returns the Python that runs a script, as the script says it; empty: it is not one of Python's.
func pythonOf(script string) string {
	f, err := os.Open(script)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	python, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "#!")
	if python = strings.TrimSpace(python); !ok || !path.IsAbs(python) || strings.ContainsAny(python, " \t") ||
		!strings.HasPrefix(path.Base(python), "python") {
		return ""
	}
	return python
}
