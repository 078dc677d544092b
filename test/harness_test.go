// Package test holds the tests of the whole program: real servers, real
// sandboxes, real clients. They need the programs of `make build` and the tools
// of `make tools`.
//
// Each test has a server, a state folder and users of its own, and looks at its
// end for what is left of them. The long ones run side by side.
package test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/revision"
	"sandlot/internal/runtime/docker/dockertest"
)

const (
	older = revision.Stateful
	newer = revision.Stateless
)

// server is one running server with a state folder of its own.
type server struct {
	t     *testing.T
	State string
	URL   string // without a path
	args  []string
	env   []string
	cmd   *exec.Cmd
	log   *logBuffer

	program string
	docker  *dockertest.Daemon // which may have sandboxes of it; nil: it has none on Docker
	user    int                // 0: the test's own
	dir     string             // in which it starts; empty: the test's own
	port    int                // 0: one that is free
	tls     *tls.Config        // of its clients; nil: it has no TLS
}

// web is how requests reach the server.
func (s *server) web() http.RoundTripper {
	if s.tls == nil {
		return transport
	}
	return &http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true}
}

// as makes a command run as the server's user.
func (s *server) as(cmd *exec.Cmd) *exec.Cmd {
	if s.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.user),
			Gid: uint32(s.user)}}
	}
	return cmd
}

// logBuffer keeps the last part of what a program says, and of the warnings and
// errors that the server said before.
type logBuffer struct {
	mu   sync.Mutex
	data []byte
	loud []byte

	whole bool // keep all
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if over := len(b.data) - 64<<10; over > 0 && !b.whole {
		over += bytes.IndexByte(b.data[over:], '\n') + 1 // a whole line, if there is one
		for line := range bytes.Lines(b.data[:over]) {
			if bytes.Contains(line, []byte("level=WARN")) || bytes.Contains(line, []byte("level=ERROR")) {
				b.loud = append(b.loud, line...)
			}
		}
		b.loud = b.loud[max(0, len(b.loud)-64<<10):]
		b.data = append(b.data[:0], b.data[over:]...)
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.loud) + string(b.data)
}

func binary(t testing.TB) string {
	t.Helper()
	if program := siteOf(t).program; program != "" {
		return program
	}
	return makeBuilt(t)
}

// makeBuilt is the program that `make build` has made.
func makeBuilt(t testing.TB) string {
	t.Helper()
	p, err := filepath.Abs("../bin/sandlot")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v; run `make build`", err)
	}
	return p
}

func tools(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SANDLOT_TEST_TOOLS")
	if dir == "" {
		dir, _ = filepath.Abs("../.tools")
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	return dir
}

// start starts a server. Settings are environment variables, NAME=VALUE. It boots
// no sandbox before one is used, unless the settings are those of asShipped. When
// the test ends, all its sessions are stopped, and nothing may be left.
func start(t *testing.T, settings ...string) *server {
	t.Helper()
	s := prepare(t)
	s.begin(settings)
	return s
}

// prepare makes a server's state folder.
func prepare(t *testing.T) *server {
	t.Helper()
	folder := t.TempDir()
	t.Cleanup(func() { // what a killed server had begun to start may write for a moment
		for range 50 {
			if os.RemoveAll(folder) == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	state, err := filepath.EvalSymlinks(folder)
	if err != nil {
		t.Fatal(err)
	}
	return &server{t: t, State: state, log: &logBuffer{}, program: binary(t)}
}

func (s *server) begin(settings []string) {
	s.t.Helper()
	s.setEnvironment(settings)
	s.serve("/readyz")
}

// serve starts the server, with its environment, until the test ends. It waits until a path is served.
func (s *server) serve(path string) {
	s.t.Helper()
	port := s.port
	if port == 0 {
		port = freePort(s.t)
	}
	s.URL = fmt.Sprintf("http://127.0.0.1:%d", port)
	if s.tls != nil {
		s.URL = strings.Replace(s.URL, "http", "https", 1)
	}
	s.args = []string{"serve", "--state-dir", s.State, "--port", strconv.Itoa(port), "--host", "127.0.0.1"}
	s.launchUntil(path)
	s.t.Cleanup(s.end)
}

// asShipped are the settings of a server that boots sandboxes ahead, as without any settings: a pool of two, made of a
// preboot image.
var asShipped = []string{"SANDLOT_POOL_SIZE=2", "SANDLOT_SNAPSHOTS=true"}

// setEnvironment sets the environment of the server and of its commands.
func (s *server) setEnvironment(settings []string) {
	// Registries are for the tests that use one: to look for them takes a second.
	at := siteOf(s.t)
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmp.Or(at.home, os.Getenv("HOME")),
		"SANDLOT_NETWORK_REGISTRIES=none", "SANDLOT_PACKAGES_PYTHON=none", "SANDLOT_PACKAGES_NODE=none", "SANDLOT_PACKAGES_GO=none",
		"SANDLOT_PACKAGES_APT=false"}
	if at.daemon != nil {
		s.docker = at.daemon
		// Docker's sandboxes cannot sleep: that they end with their server is a test of its own.
		s.env = append(s.env, "SANDLOT_ON_STOP=keep")
	}
	if at.daemon != nil && !isLikeAMac(s.t) { // which uses Docker without settings, and finds the daemon by itself
		s.env = append(s.env, "SANDLOT_RUNTIME=docker", "SANDLOT_DOCKER_HOST="+at.daemon.Host)
	}
	if !slices.ContainsFunc(settings, func(s string) bool { return strings.Contains(s, "POOL_SIZE=") }) {
		s.env = append(s.env, "SANDLOT_POOL_SIZE=0")
	}
	if !slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, "SANDLOT_SNAPSHOTS=") }) {
		s.env = append(s.env, "SANDLOT_SNAPSHOTS=false")
	}
	s.env = append(s.env, settings...)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// launch starts the process and waits until it serves, and can make sandboxes.
func (s *server) launch() {
	s.t.Helper()
	s.launchUntil("/readyz")
}

// launchUntil starts the process and waits until a path is served.
func (s *server) launchUntil(path string) {
	s.t.Helper()
	s.cmd = s.as(exec.Command(s.program, s.args...))
	s.cmd.Env, s.cmd.Dir = s.env, s.dir
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		r, err := (&http.Client{Transport: s.web()}).Get(s.URL + path)
		if err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				return
			}
		}
		if time.Now().After(deadline) || syscall.Kill(s.cmd.Process.Pid, 0) != nil {
			s.kill() // nobody else ends it
			s.t.Fatalf("the server does not come up: %v\n%s", err, s.log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitImage waits until the server has made its preboot image.
func (s *server) awaitImage() {
	s.t.Helper()
	for range 600 {
		if made, _ := filepath.Glob(filepath.Join(s.State, "snapshots", "[^.]*")); len(made) > 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Fatalf("the server made no preboot image\n%s", s.log.String())
}

// kill ends the server as a crash does.
func (s *server) kill() {
	s.t.Helper()
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// stop ends the server as an operator does.
func (s *server) stop() {
	s.t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			s.t.Errorf("the server ended with %v\n%s", err, s.log)
		}
	case <-time.After(100 * time.Second): // as long as the unit gives it
		s.cmd.Process.Kill()
		<-done
		s.t.Errorf("the server does not stop\n%s", s.log)
	}
}

// end stops all sessions and the server, and looks for what is left.
func (s *server) end() {
	if _, errs, code := s.cli("sessions", "stop", "--all"); code != 0 {
		s.t.Errorf("stopping all sessions: %s", errs)
	}
	s.stop()
	if s.t.Failed() && testing.Verbose() {
		s.t.Logf("the server's log:\n%s", s.log)
	}
	left := []string{"?"}
	for range 100 {
		if left = s.left(); len(left) == 0 {
			if isLikeAMac(s.t) { // all others compare what is on their daemons
				s.removeVolumes()
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Errorf("this is left: %q", left)
}

// folders are the folders of the server's sandboxes.
func (s *server) folders() []string {
	onGVisor, _ := filepath.Glob(filepath.Join(s.State, "sandboxes", "*"))
	onDocker, _ := filepath.Glob(filepath.Join(s.State, "docker", "sandboxes", "*"))
	machines, _ := filepath.Glob(filepath.Join(s.State, "msb", "boxes", "*"))
	return append(append(onGVisor, onDocker...), machines...)
}

// left lists what there is of the server's sandboxes on the machine.
func (s *server) left() (found []string) {
	for _, f := range s.folders() {
		found = append(found, "folder "+f)
	}
	images, _ := filepath.Glob(filepath.Join(s.State, "frozen", "*"))
	for _, f := range images {
		found = append(found, "image "+f)
	}
	found = append(append(found, s.containers()...), s.lostVolumes()...)
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && bytes.Contains(line, []byte(s.State)) && bytes.Contains(line, []byte("runsc")) {
			found = append(found, "process "+e.Name())
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.State) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

// cli runs one of the server's commands and returns what it printed.
func (s *server) cli(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return s.cliIn("", args...)
}

func (s *server) cliIn(stdin string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := s.as(exec.CommandContext(ctx, s.program, append([]string{"--state-dir", s.State}, args...)...))
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = s.env
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	if ctx.Err() != nil {
		s.t.Errorf("sandlot %q does not end", args)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// token makes a token for a user.
func (s *server) token(user string, flags ...string) string {
	s.t.Helper()
	out, errs, code := s.cli(append([]string{"token", "create", "--user", user}, flags...)...)
	if code != 0 {
		s.t.Fatalf("no token for %s: %s", user, errs)
	}
	return strings.TrimSpace(out)
}

// actingAs is a token of a service with the name of its user, for connect and credentials.
func actingAs(token, user string) string { return token + " " + user }

// credentials are the headers of a token, or of actingAs.
func credentials(token string) []string {
	token, user, acts := strings.Cut(token, " ")
	header := []string{"Authorization", "Bearer " + token}
	if acts {
		header = append(header, "Sandlot-User", user)
	}
	return header
}

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		for header := range slices.Chunk(credentials(b.token), 2) {
			r.Header.Set(header[0], header[1])
		}
	}
	return b.next.RoundTrip(r)
}

var transport = &http.Transport{MaxIdleConnsPerHost: 200}

// client is an MCP client of one era.
type client struct {
	t *testing.T
	*mcp.ClientSession
}

// connect connects as the user of a token, which may be empty.
func (s *server) connect(version, token string, opts *mcp.ClientOptions) *client {
	s.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	session, err := c.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp",
		HTTPClient: &http.Client{Transport: bearer{token, s.web()}}, DisableStandaloneSSE: true},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.t.Fatalf("connecting: %v", err)
	}
	s.t.Cleanup(func() { session.Close() })
	return &client{s.t, session}
}

// stdio begins a client that starts `sandlot stdio`, which uses the server.
func (s *server) stdio() *client {
	s.t.Helper()
	cmd := s.as(exec.Command(s.program, "stdio", "--state-dir", s.State))
	cmd.Env, cmd.Stderr = s.env, s.log
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(s.t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log)
	}
	s.t.Cleanup(func() { c.Close() })
	return &client{s.t, c}
}

// result is a tool's result, made easy to look at.
type result struct {
	*mcp.CallToolResult
	Fields map[string]any
	Text   string // of the first block
	All    string // of all text blocks
}

type args = map[string]any

// faultOf returns the fault in a result, as an error of JSON-RPC; nil: there is none.
func faultOf(r *mcp.CallToolResult) error {
	about, ok := r.Meta["sandlot/error"].(map[string]any)
	if !ok || !r.IsError {
		return nil
	}
	code, _ := about["code"].(float64)
	e := &jsonrpc.Error{Code: int64(code)}
	e.Data, _ = json.Marshal(about["data"])
	for _, b := range r.Content {
		if t, ok := b.(*mcp.TextContent); ok {
			e.Message += t.Text
		}
	}
	return e
}

// try calls a tool. A fault is an error.
func (c *client) try(ctx context.Context, tool string, a args) (*result, error) {
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: a})
	if err == nil {
		err = faultOf(r)
	}
	if err != nil {
		return nil, err
	}
	out := &result{CallToolResult: r, Fields: map[string]any{}}
	if m, ok := r.StructuredContent.(map[string]any); ok {
		out.Fields = m
	}
	for i, b := range r.Content {
		if t, ok := b.(*mcp.TextContent); ok {
			if i == 0 && !strings.HasPrefix(t.Text, "session_id: ") { // there is no output
				out.Text = t.Text
			}
			out.All += strings.TrimPrefix(t.Text, "\n") + "\n"
		}
	}
	return out, nil
}

// call calls a tool that must answer.
func (c *client) call(tool string, a args) *result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := c.try(ctx, tool, a)
	if err != nil {
		c.t.Fatalf("%s %v: %v", tool, a, err)
	}
	return r
}

func (r *result) session() string { s, _ := r.Fields["session_id"].(string); return s }

// code runs Python in a session.
func (c *client) code(session, code string) *result {
	c.t.Helper()
	return c.call("execute_code", args{"code": code, "session_id": session})
}

// want is code with an expected text.
func (c *client) want(session, code, text string) *result {
	c.t.Helper()
	r := c.code(session, code)
	if r.Text != text {
		c.t.Errorf("%s: got %q, want %q (all: %q)", code, r.Text, text, r.All)
	}
	return r
}

// shell runs a command in a session.
func (c *client) shell(session, command string) *result {
	c.t.Helper()
	return c.call("execute_command", args{"command": command, "session_id": session})
}

// post sends a body as curl does and returns the answer.
func (s *server) post(path, body string, header ...string) (int, http.Header, string) {
	s.t.Helper()
	return s.request("POST", path, strings.NewReader(body), append([]string{"Content-Type", "application/json"},
		header...)...)
}

func (s *server) request(method, path string, body io.Reader, header ...string) (int, http.Header, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Accept", "*/*")
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := s.web().RoundTrip(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// rpc is a bare JSON-RPC answer.
type rpc struct {
	ID     any            `json:"id"`
	Result map[string]any `json:"result"`
	Error  *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

// bare makes a bare call of a tool.
func (s *server) bare(tool string, a args, header ...string) rpc {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": a}})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.answer(string(body), header...)
}

func (s *server) answer(body string, header ...string) rpc {
	s.t.Helper()
	code, _, text := s.post("/mcp", body, header...)
	var r rpc
	if err := json.Unmarshal([]byte(text), &r); err != nil || code != 200 {
		s.t.Fatalf("%s: HTTP %d, %q", body, code, text)
	}
	return r
}

// startUnprivileged starts a server as the user nobody, with programs and a
// state folder that this user can reach.
func startUnprivileged(t *testing.T, settings ...string) *server {
	t.Helper()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "sandlot-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(state, 0o700), os.Chown(state, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sandlot", "sandlot-agent", "sandlot-runsc"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(binary(t)), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &server{t: t, State: state, log: &logBuffer{}, program: filepath.Join(dir, "sandlot"), user: nobody}
	s.begin(append([]string{"HOME=" + dir}, settings...))
	return s
}
