package stack

import (
	"context"
	"go/version"
	"os"
	"path/filepath"
	"strings"

	"sandlot/internal/image"
)

// oldestGo is the first version of Go that takes its build cache from a program (GOCACHEPROG).
const oldestGo = "go1.24"

// goProgram returns the Go on the machine that sandboxes of the template host run by its name: they see it by the same
// path; empty: they have none, or one that is too old.
func goProgram(host *image.Template) string {
	for dir := range strings.SplitSeq(host.Env["PATH"], ":") {
		if !filepath.IsAbs(dir) || strings.HasPrefix(dir+"/", "/workspace/") { // the user's own
			continue
		}
		file := filepath.Join(dir, "go")
		if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			continue
		}
		real, err := filepath.EvalSymlinks(file)
		if v, _, _ := strings.Cut(goVersion(real), "\n"); err != nil || !version.IsValid(v) || version.Compare(v, oldestGo) < 0 {
			return ""
		}
		return real
	}
	return ""
}

// goVersion returns what the file VERSION of a Go says.
func goVersion(program string) string {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(program)), "VERSION"))
	return string(text)
}

// makeGoCache compiles packages of the standard library into a build cache. It reads and writes nothing of the server's
// user, and fetches nothing.
func makeGoCache(ctx context.Context, program, dir string, packages []string) error {
	return run(ctx, []string{"GOCACHE=" + dir, "GOCACHEPROG=", "GOENV=off", "GOFLAGS=", "GOWORK=off", "GOTOOLCHAIN=local",
		"GOPROXY=off", "GOPATH=" + filepath.Join(dir, "path"), "GOMODCACHE=" + filepath.Join(dir, "path/pkg/mod"),
		"GOTELEMETRY=off", "GOOS=", "GOARCH=", "GOEXPERIMENT=", "CGO_ENABLED="}, append([]string{program, "build"}, packages...)...)
}
