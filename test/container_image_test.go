package test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/runtime/docker/dockertest"
)

// The base images of deploy/Dockerfile cannot be pulled where the tests run. Two of the same Debian take their place:
// the tests' own, and one with this machine's Go, and with what `make build` here has left in Go's build cache.
const (
	debianImage = "sandlot-test/debian:1"
	goImage     = "sandlot-test/go:1"
)

// debianFile makes debianImage. It has an npm, of which the package manager knows nothing; Debian's own needs 400
// packages and minutes.
const debianFile = `FROM ` + dockertest.BaseImage + `
RUN apt-get update && apt-get install -y --no-install-recommends make
RUN printf '%s\n' '' 'Package: npm' 'Status: install ok installed' 'Version: 99' 'Architecture: all' \
    'Maintainer: the tests' 'Description: stand-in' '' >> /var/lib/dpkg/status
`

// packageSources serves in the daemon's network what building an image needs of the outside: an HTTP proxy for Debian's
// package manager, and this machine's cache of Go modules as a module proxy. It returns its address.
func packageSources(t *testing.T, d *dockertest.Daemon) string {
	t.Helper()
	modules := http.FileServer(http.Dir(filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")))
	packages := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}
	listener := d.Listen(t, dockertest.Gateway)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == listener.Addr().String() {
			modules.ServeHTTP(w, r)
			return
		}
		packages.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-done })
	return "http://" + listener.Addr().String()
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// buildBases builds debianImage and goImage.
func (c *containers) buildBases(proxy string) {
	c.t.Helper()
	cmd := c.command("docker build -q --build-arg http_proxy=" + proxy + " -t " + debianImage + " -")
	cmd.Stdin = strings.NewReader(debianFile)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("building %s: %v\n%s", debianImage, err, out)
	}
	dockerfile := fmt.Sprintf(`FROM %s
COPY go /usr/local/go
COPY cache /root/.cache/go-build
ENV PATH=/usr/local/go/bin:$PATH GOPATH=/go GOTOOLCHAIN=local GOPROXY=%s
`, debianImage, proxy)
	reader, writer := io.Pipe()
	cmd = c.command("docker build -q -t " + goImage + " -")
	cmd.Stdin = reader
	go func() {
		archive := tar.NewWriter(writer)
		err := addFile(archive, "Dockerfile", 0o644, []byte(dockerfile))
		for _, name := range []string{"bin", "pkg", "src", "go.env", "VERSION"} {
			if err == nil {
				err = addTree(archive, filepath.Join(goEnv(c.t, "GOROOT"), name), path.Join("go", name))
			}
		}
		if err == nil {
			err = addBuilt(archive, goEnv(c.t, "GOCACHE"))
		}
		if err == nil {
			err = archive.Close()
		}
		writer.CloseWithError(err)
	}()
	out, err := cmd.CombinedOutput()
	reader.Close()
	if err != nil {
		c.t.Fatalf("building %s: %v\n%s", goImage, err, out)
	}
}

func addFile(archive *tar.Writer, name string, mode int64, content []byte) error {
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// addTree adds a file, or the files of a folder, without the data of Go's own tests.
func addTree(archive *tar.Writer, source, target string) error {
	return filepath.WalkDir(source, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && e.Name() == "testdata" {
			return fs.SkipDir
		}
		if !e.Type().IsRegular() {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return addFile(archive, target+strings.TrimPrefix(name, source), int64(info.Mode().Perm()), content)
	})
}

// built lists what `make build` compiles, with the variables for it.
var built = []struct {
	env  string
	args []string
}{
	{"GOARCH=" + runtime.GOARCH, []string{"-tags=agents", "./cmd/sandlot", "./cmd/sandlot-agent", "./cmd/sandlot-runsc",
		"./internal/runtime/program/pack"}},
	{"GOARCH=amd64", []string{"./cmd/sandlot-agent"}},
	{"GOARCH=arm64", []string{"./cmd/sandlot-agent"}},
}

// addBuilt adds those entries of Go's build cache that building the programs uses: without them it takes minutes.
// An entry has a file that names its output, `<action>-a`, and the output, `<sum>-d`. The output of the compiler
// itself, mostly nothing, is an entry of its own.
func addBuilt(archive *tar.Writer, cache string) error {
	var ids string
	for _, b := range built {
		list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.BuildID}}"}, b.args...)...)
		list.Dir = ".."
		list.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0", b.env)
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("go list: %w", err)
		}
		ids += string(out)
	}
	added := map[string]bool{}
	for id := range strings.Lines(ids) {
		id, _, _ = strings.Cut(strings.TrimSpace(id), "/") // the first bytes of the action's sum
		prefix, err := base64.RawURLEncoding.DecodeString(id)
		if err != nil || len(prefix) == 0 {
			continue // unsafe has no code
		}
		text := hex.EncodeToString(prefix)
		found, err := filepath.Glob(filepath.Join(cache, text[:2], text+"*-a"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("go's build cache has %d entries for %s", len(found), id)
		}
		action, err := hex.DecodeString(strings.TrimSuffix(filepath.Base(found[0]), "-a"))
		if err != nil {
			return err
		}
		output := sha256.Sum256(append(append([]byte("subkey:"), action...), "stdout"...))
		if added[id] {
			continue
		}
		added[id] = true
		for _, action := range [][]byte{action, output[:]} {
			if err := addEntry(archive, cache, hex.EncodeToString(action), added); err != nil {
				return err
			}
		}
	}
	return nil
}

func addEntry(archive *tar.Writer, cache, action string, added map[string]bool) error {
	name := path.Join(action[:2], action+"-a")
	entry, err := os.ReadFile(filepath.Join(cache, name))
	if err != nil {
		return err
	}
	fields := bytes.Fields(entry) // v1, action, output, size, time
	if len(fields) != 5 {
		return fmt.Errorf("%s is not an entry of Go's build cache", name)
	}
	if err := addFile(archive, path.Join("cache", name), 0o644, entry); err != nil {
		return err
	}
	output := string(fields[2])
	if added[output] {
		return nil
	}
	added[output] = true
	name = path.Join(output[:2], output+"-d")
	content, err := os.ReadFile(filepath.Join(cache, name))
	if err != nil {
		return err
	}
	return addFile(archive, path.Join("cache", name), 0o644, content)
}
