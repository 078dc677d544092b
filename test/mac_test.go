package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	rawlayer "github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/runtime/docker/dockertest"
)

// buildForMac builds the server with what a Mac has, and no more, once for all tests. The agents are in it, as in a
// release, and no other program is beside it.
var buildForMac = sync.OnceValues(func() (string, error) {
	program, err := filepath.Abs("../bin/mac/sandlot")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-tags", "mac,agents", "-trimpath", "-ldflags", "-s -w", "-o", program,
		"../cmd/sandlot")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, text)
	}
	return program, nil
})

func macProgram(t *testing.T) string {
	t.Helper()
	binary(t) // its build has packed the agents
	program, err := buildForMac()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// pythonRegistry starts a registry on loopback that has the image of the ready-made template python, and returns its
// address. Docker asks a mirror for the images of its own registry first.
func pythonRegistry(t *testing.T) string {
	t.Helper()
	blobs := t.TempDir()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))))
	t.Cleanup(s.Close)
	base, err := tarball.LayerFromFile(imagetest.BaseArchive(t), tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(s.URL, "http://")+"/library/python:3.13-slim", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	var more bytes.Buffer // to be downloaded: the daemon may have the other layer
	w := tar.NewWriter(&more)
	const size = 8 << 20
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/share/more", Size: size, Mode: 0o644})
	_, copyErr := io.CopyN(w, rand.New(rand.NewSource(1)), size)
	if err := errors.Join(err, copyErr, w.Close()); err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, base, rawlayer.NewLayer(more.Bytes(), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if image, err = mutate.ConfigFile(image, config); err == nil {
		err = remote.Write(ref, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.URL
}

// mac is a user's Mac, as far as this machine can be one: a server without gVisor, whose Docker daemon sees none of its
// files, and the places of a Mac in the user's home folder.
type mac struct {
	*server
	home string
}

// sandlot runs a command as the user does in a terminal.
func (m *mac) sandlot(args ...string) (out, errs string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.program, args...)
	var o, e bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(m.env, "SANDLOT_STATE_DIR="+m.State), &o, &e
	if err := cmd.Run(); err != nil {
		m.t.Fatalf("sandlot %q: %v\n%s%s", args, err, o.String(), e.String())
	}
	return o.String(), e.String()
}

// entry returns Sandlot's entry in a client's file.
func (m *mac) entry(file string) (e struct {
	Command, URL string
	Args         []string
}) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.home, file))
	var all struct{ MCPServers map[string]json.RawMessage }
	if err = errors.Join(err, json.Unmarshal(text, &all)); err == nil {
		err = json.Unmarshal(all.MCPServers["sandlot"], &e)
	}
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", file, err, text)
	}
	return e
}

// claude starts what Claude Desktop starts, in another folder and environment than the user's, and connects to it.
func (m *mac) claude(file string, opts *mcp.ClientOptions) *client {
	m.t.Helper()
	e := m.entry(file)
	cmd := exec.Command(e.Command, e.Args...)
	cmd.Env, cmd.Dir, cmd.Stderr = m.env, "/", m.log
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).
		Connect(m.t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.log)
	}
	m.t.Cleanup(func() { c.Close() })
	return &client{m.t, c}
}

// TestLikeAMac: on a machine with what a Mac has, one command connects a client, which starts the rest by itself. While
// Docker does not run, the answer to a call says so; as soon as it does, the same client's next call works, and sees
// the image come. Then a server runs, and another client connects to it.
func TestLikeAMac(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("", "sandlot-mac-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	m := &mac{prepare(t), home}
	m.program = macProgram(t)
	m.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "SANDLOT_NETWORK_REGISTRIES=none",
		"SANDLOT_POOL_SIZE=1"}
	// Docker Desktop is installed, and does not run.
	socket := filepath.Join(home, ".docker/run/docker.sock")
	writeContext(t, home, "desktop-linux", "unix://"+socket)
	const file = "Library/Application Support/Claude/claude_desktop_config.json"
	if _, errs := m.sandlot("install", "claude-desktop", "--yes"); !strings.Contains(errs, "start it (such as Docker") {
		t.Errorf("what is missing is not said: %s", errs)
	}
	var mu sync.Mutex
	var steps []string
	c := m.claude(file, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
		r *mcp.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, r.Params.Message)
	}})
	_, err = c.try(t.Context(), "execute_code", args{"code": "6*7"})
	if err == nil || !strings.Contains(err.Error(), "does not answer: start it (such as Docker Desktop)") {
		t.Errorf("without Docker: %v", err)
	}
	m.docker = dockertest.Start(t, "--live-restore", "--registry-mirror", pythonRegistry(t))
	t.Cleanup(func() { goneBut(t, m.docker.Remains, "volume sandlot-workspace-") }) // of the home
	err = errors.Join(os.MkdirAll(filepath.Dir(socket), 0o700),
		os.Symlink(strings.TrimPrefix(m.docker.Host, "unix://"), socket))
	if err != nil {
		t.Fatal(err)
	}
	p := &mcp.CallToolParams{Name: "execute_code", Arguments: args{"code": "x = 41; x + 1", "session_id": "home"}}
	p.SetProgressToken("first")
	began := time.Now()
	first, err := c.CallTool(t.Context(), p)
	t.Logf("the first call took %s", time.Since(began))
	if err != nil || first.IsError {
		t.Fatalf("with Docker: %v, %+v\n%s", err, first, m.log)
	}
	mu.Lock()
	if text := strings.Join(steps, "\n"); !pullStep.MatchString(text) {
		t.Errorf("the client sees no progress: %q", text)
	}
	mu.Unlock()
	m.usesServer(c)
}

// pullStep is what a client is told while an image comes.
var pullStep = regexp.MustCompile(`getting the image python:3\.13-slim: \d+ of \d+ MB`)

// writeContext makes a context of the docker command the current one, as Docker Desktop does.
func writeContext(t *testing.T, home, name, host string) {
	t.Helper()
	id := sha256.Sum256([]byte(name))
	dir := filepath.Join(home, ".docker/contexts/meta", hex.EncodeToString(id[:]))
	err := os.MkdirAll(dir, 0o700)
	for path, text := range map[string]string{
		filepath.Join(home, ".docker/config.json"): `{"currentContext":"` + name + `"}`,
		filepath.Join(dir, "meta.json"):            `{"Name":"` + name + `","Endpoints":{"docker":{"Host":"` + host + `"}}}`} {
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// usesServer ends the client, starts a server, and uses that with another client.
func (m *mac) usesServer(c *client) {
	t := m.t
	provenContainer(t, c, "home")
	c.call("sandbox_write_file", args{"path": "kept", "content": "of the first client", "session_id": "home"})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	m.begin([]string{"HOME=" + m.home, "SANDLOT_POOL_SIZE=1"})

	port := m.URL[strings.LastIndexByte(m.URL, ':')+1:]
	m.env = append(m.env, "SANDLOT_HOST=127.0.0.1", "SANDLOT_PORT="+port)
	m.sandlot("install", "cursor", "--yes")
	if e := m.entry(".cursor/mcp.json"); e.URL != m.URL+"/mcp" {
		t.Fatalf("the client does not connect to the server: %+v", e)
	}
	if out, _ := m.sandlot("doctor"); !strings.Contains(out, "by a daemon elsewhere") {
		t.Errorf("the daemon of the context is not used:\n%s", out)
	}
	c = m.connect(newer, "", nil)
	if r := c.code("home", "x = 1; open('/workspace/kept').read()"); !strings.Contains(r.All, "'of the first client'") {
		t.Errorf("the home: %q", r.All)
	}
	if r := c.call("sandbox_read_file", args{"path": "kept", "session_id": "home"}); r.Text != "of the first client" {
		t.Errorf("read: %q", r.All)
	}
	if r := c.call("sandbox_list_files", args{"path": ".", "session_id": "home"}); !strings.Contains(r.All, "kept") {
		t.Errorf("listed: %q", r.All)
	}
	begin(c, "home", "mirror.py", mirror, 8080)
	l := m.expose(c, args{"port": 8080, "session_id": "home"})
	if code, _, body := l.get("/hello", tokenHeader, l.token); code != 200 || !strings.Contains(body, "/hello") {
		t.Errorf("the port: %d %s", code, body)
	}
	m.put("", "tiny.sh")
	r := c.call("connect_external_mcp", args{"name": "tiny", "command": "sh", "args": []string{"/workspace/tiny.sh"}})
	if got := c.call(r.exposed(t, "hello"), args{}); got.Text != "hello" {
		t.Errorf("the third-party server: %q", got.All)
	}
	c.call("disconnect_external_mcp", args{"name": "tiny", "delete": true})
	m.kill()
	m.launch()
	transport.CloseIdleConnections()
	c = m.connect(newer, "", nil)
	c.want("home", "x + 1", "2")
	until(t, "what the killed server had is gone", func() bool { return workspaceVolumes(m.docker) == 2 })
	cmd := exec.Command(m.program, "--state-dir", filepath.Join(m.home, "other"), "serve", "--runtime", "gvisor")
	cmd.Env = m.env
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "gvisor needs Linux") {
		t.Errorf("gVisor: %v, %s", err, out)
	}
}
