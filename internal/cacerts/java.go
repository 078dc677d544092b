package cacerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// jdkFolders are the folders in which JDKs are installed.
var jdkFolders = []string{"/usr/lib/jvm", "/usr/lib64/jvm", "/usr/java", "/opt", "/opt/java", "/usr/local"}

func (m source) javaStores() []string {
	var stores []string
	for _, home := range m.javaHomes() {
		for _, p := range []string{"lib/security/cacerts", "jre/lib/security/cacerts"} {
			if real, ok := m.ownStore(filepath.Join(home, p)); ok && !slices.Contains(stores, real) {
				stores = append(stores, real)
			}
		}
	}
	slices.Sort(stores)
	return stores
}

// javaHomes lists folders that may be a JDK.
func (m source) javaHomes() []string {
	var homes []string
	if h := m.getenv("JAVA_HOME"); filepath.IsAbs(h) {
		homes = append(homes, h)
	}
	for _, dir := range filepath.SplitList(m.getenv("PATH")) {
		java := filepath.Join(dir, "java")
		if _, err := exec.LookPath(java); err != nil || !filepath.IsAbs(java) {
			continue
		}
		if real, err := filepath.EvalSymlinks(java); err == nil {
			homes = append(homes, filepath.Dir(filepath.Dir(real)))
		}
	}
	for _, dir := range jdkFolders {
		names, _ := fileNames(m.root + dir)
		for _, n := range names {
			homes = append(homes, filepath.Join(m.root+dir, n))
		}
	}
	return homes
}

// ownStore returns the file to which the path of a JDK's store leads, and false if a link on the
// way is a path of Bundle.Files: in a sandbox, that path has the right store. So links are
// followed one by one.
func (m source) ownStore(path string) (string, bool) {
	for range 16 {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", false
		}
		path = filepath.Join(dir, filepath.Base(path))
		if rel, ok := strings.CutPrefix(path, m.root+"/"); ok && slices.Contains(javaPaths, rel) {
			return "", false
		}
		target, err := os.Readlink(path)
		if err != nil { // not a link: a file, or nothing
			st, err := os.Stat(path)
			return path, err == nil && st.Mode().IsRegular()
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return "", false
}
