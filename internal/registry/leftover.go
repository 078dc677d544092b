package registry

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// copyFolder matches the names of folders that copyName returns.
var copyFolder = regexp.MustCompile(`^.+-[0-9a-f]{12}$`)

// copyName returns the name of the folder with the copy of a registry.
func copyName(s Source) string { return s.Name + "-" + digest(s.URL)[:12] }

// RemoveOthers removes the copies in a folder that are of none of the sources, such as those of registries that were in
// the settings before. It leaves everything else alone. No server may use the copies meanwhile.
func RemoveOthers(folder string, sources []Source, log *slog.Logger) {
	all, err := os.ReadDir(folder)
	if err != nil {
		return // there are none
	}
	for _, e := range all {
		used := slices.ContainsFunc(sources, func(s Source) bool { return s.URL != "" && copyName(s) == e.Name() })
		if used || !e.IsDir() || !copyFolder.MatchString(e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			log.Warn("the copy of an MCP registry that is not in the settings any more cannot be removed", "error", err)
		}
	}
}
