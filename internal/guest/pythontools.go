package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandlot/internal/agent/wire"
)

// PYTHONPATH, which programs may set and -E and -I ignore, is not enough to find the module mcp_tools. Python always
// looks into the folder of its standard library, also in a virtual environment.
const (
	toolsModule = `# Made by Sandlot: the tools of your MCP servers, whatever PYTHONPATH is.
def _load():
    import importlib.util, os, sys
    folder = "` + wire.ToolsPython + `/mcp_tools"
    if not os.path.exists(folder):
        raise ModuleNotFoundError("No module named 'mcp_tools': no MCP server is connected, whose tools it would have",
            name="mcp_tools")
    spec = importlib.util.spec_from_file_location("mcp_tools", folder + "/__init__.py", submodule_search_locations=[folder])
    module = sys.modules["mcp_tools"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
_load()
`
	toolsPath = "import sys; '" + wire.ToolsPython + "' in sys.path or sys.path.append('" + wire.ToolsPython + "')\n"
	// readyPath adds the ready packages behind what the user has installed, and before what the machine has, of which they
	// may need newer versions. Virtual environments do not get them.
	readyPath = "import os, sys; sys.prefix != sys.base_prefix or '" + wire.ReadyPython + "' in sys.path or not os.path.isdir('" +
		wire.ReadyPython + "') or sys.path.insert(next((n for n, x in enumerate(sys.path) if x.endswith(('/dist-packages', " +
		"'/site-packages')) and not x.startswith('/workspace/')), len(sys.path)), '" + wire.ReadyPython + "')\n"
)

// linkTools makes the interpreters of Python in the sandbox find the module mcp_tools, and the ready packages. The root
// file system may be the machine's, and read-only. Then, and for the ready packages, it tries the file of Debian that is read at each start and is in
// /etc, and then the user's folder of packages, which -I and virtual environments ignore.
func (h home) linkTools(python []string) {
	for _, lib := range h.libraries(python) {
		if err := writeNew(filepath.Join(lib, "mcp_tools.py"), toolsModule); err == nil && !h.exists(wire.ReadyPython) {
			continue
		}
		if to, err := os.Readlink(filepath.Join(lib, "sitecustomize.py")); err == nil && filepath.IsAbs(to) {
			to = h.inRoot(to)
			if os.MkdirAll(filepath.Dir(to), 0o755) == nil && writeNew(to, toolsPath+readyPath) == nil {
				continue
			}
		}
		if h.userBase() != "" {
			_ = h.user.Do(func() error {
				site := h.inRoot(filepath.Join(h.userBase(), "lib", filepath.Base(lib), "site-packages"))
				return errors.Join(os.MkdirAll(site, 0o755), writeNew(filepath.Join(site, "sandlot_tools.pth"), toolsPath),
					writeNew(filepath.Join(site, "sandlot_ready.pth"), readyPath))
			})
		}
	}
}

// libraries returns the folders of the standard libraries of Python: of the programs, and of the usual places.
func (h home) libraries(python []string) (all []string) {
	prefixes := []string{"/usr", "/usr/local"}
	for _, p := range python {
		if real, err := filepath.EvalSymlinks(h.inRoot(p)); err == nil {
			if below, err := filepath.Rel(h.root, real); err == nil && !strings.HasPrefix(below, "..") {
				prefixes = append(prefixes, filepath.Dir(filepath.Dir("/"+below)))
			}
		}
	}
	for _, prefix := range prefixes {
		found, _ := filepath.Glob(h.inRoot(filepath.Join(prefix, "lib*", "python3.*", "os.py")))
		for _, f := range found {
			if dir := filepath.Dir(f); !slices.Contains(all, dir) {
				all = append(all, dir)
			}
		}
	}
	return all
}

// writeNew writes a file, unless there is one: what an image has stays.
func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		if old, readErr := os.ReadFile(path); readErr == nil && string(old) == content {
			return nil
		}
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		err = fmt.Errorf("%w, %w", err, os.Remove(path))
	}
	return err
}
