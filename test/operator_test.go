package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// gate is a registry that stops in the middle of the layers of images named slow, until it is open.
type gate struct {
	inner http.Handler
	open  chan struct{}
	once  sync.Once
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/slow/blobs/sha256:") {
		g.inner.ServeHTTP(w, r)
		return
	}
	whole := httptest.NewRecorder()
	r.Header.Del("Range")
	g.inner.ServeHTTP(whole, r)
	body := whole.Body.Bytes()
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	half := len(body)
	if half > 1<<20 {
		half /= 2
	}
	w.WriteHeader(whole.Code)
	// In two parts: the progress of a layer is told ten times a second at most.
	_, _ = w.Write(body[:half/2])
	w.(http.Flusher).Flush()
	if half < len(body) {
		time.Sleep(300 * time.Millisecond)
	}
	_, _ = w.Write(body[half/2 : half])
	w.(http.Flusher).Flush()
	if half < len(body) {
		select {
		case <-g.open:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = w.Write(body[half:])
}

func (g *gate) pass() { g.once.Do(func() { close(g.open) }) }

// imageRegistry is a registry of images on this machine, with the images that are pushed to it.
func imageRegistry(t *testing.T) (g *gate, push func(name string) string) {
	t.Helper()
	g = &gate{inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))), open: make(chan struct{})}
	s := httptest.NewServer(g)
	t.Cleanup(func() { g.pass(); s.Close() })
	return g, func(image string) string {
		t.Helper()
		made, err := random.Image(4<<20, 1)
		if err != nil {
			t.Fatal(err)
		}
		made, err = mutate.ConfigFile(made, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH,
			RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(t, made)}})
		if err != nil {
			t.Fatal(err)
		}
		ref := s.Listener.Addr().String() + "/" + image
		to, err := name.ParseReference(ref)
		if err == nil {
			err = remote.Write(to, made)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
}

func diffIDs(t *testing.T, of v1.Image) (ids []v1.Hash) {
	t.Helper()
	layers, err := of.Layers()
	for _, l := range layers {
		id, idErr := l.DiffID()
		if idErr != nil {
			err = idErr
		}
		ids = append(ids, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// operating is an operator who works on a server from elsewhere.
type operating struct {
	t *testing.T
	*server
	operator, ann string // tokens
	gate          *gate
	push          func(name string) string
	taken         int // messages of the channel of images
}

// TestOperator: an operator works on a server from elsewhere, by commands, routes and the live channel: images with their
// progress, the doctor, tokens, rules, usage, registries, the log of a third-party server. Others may nothing of it.
func TestOperator(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	s.settings("mcp_registries: []\npolicy:\n  rules:\n    - deny ann shell.execute *forbidden*\n    - deny * image.pull *:secret\n")
	s.begin(nil)
	o := &operating{t: t, server: s, operator: s.token("eve", "--role", "operator"), ann: s.token("ann")}
	o.gate, o.push = imageRegistry(t)
	o.refusesOthers()
	o.getsImages()
	o.removesImages()
	o.checksTheMachine()
	o.handlesTokens()
	o.checksRules()
	o.followsALog()
}

// remote returns a command with --server and a token.
func (o *operating) remote(token string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	o.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, o.program, append([]string{"--server", o.URL, "--state-dir", o.t.TempDir()}, args...)...)
	cmd.Env = append(os.Environ(), "SANDLOT_TOKEN="+token)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// runs runs such a command, and fails unless it ends with that code.
func (o *operating) runs(code int, token string, args ...string) (out, errs string) {
	o.t.Helper()
	cmd := o.remote(token, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		o.t.Errorf("sandlot %q ends with %d, want %d:\n%s%s", args, got, code, stdout.String(), stderr.String())
	}
	return stdout.String(), stderr.String()
}

func (o *operating) asks(status int, method, path, body, token string) string {
	o.t.Helper()
	got, _, text := o.request(method, path, strings.NewReader(body), "Authorization", "Bearer "+token)
	if got != status {
		o.t.Errorf("%s %s: %d %s, want %d", method, path, got, text, status)
	}
	return text
}

func (o *operating) refusesOthers() {
	for _, r := range [][3]string{{"GET", "/v1/images", ""}, {"POST", "/v1/images", `{"image":"python:3"}`},
		{"DELETE", "/v1/images/python:3", ""}, {"DELETE", "/v1/pulls/x", ""}, {"GET", "/v1/doctor", ""},
		{"POST", "/v1/doctor", ""}} {
		o.asks(403, r[0], r[1], r[2], o.ann)
		o.asks(401, r[0], r[1], r[2], "slt_wrong")
	}
	l := o.live(o.ann)
	l.says(`{"op":"open","channel":1,"kind":"images"}`)
	if m := l.hears(); m.Op != "closed" || m.Error["title"] != "FORBIDDEN" {
		o.t.Errorf("images are pushed to ann: %+v", m)
	}
	l.says(`{"op":"open","channel":2,"kind":"templates"}`)
	l.hears() // opened
	if m := l.hears(); !strings.Contains(fmt.Sprint(m.Data), "name:python") || strings.Contains(fmt.Sprint(m.Data), "3.13-slim") {
		o.t.Errorf("templates are pushed to ann: %v", m.Data)
	}
	for _, args := range [][]string{{"image", "list"}, {"image", "pull", "python:3"}, {"image", "remove", "x:1"}, {"doctor"},
		{"token", "list", "--all"}, {"usage", "--all"}} {
		if _, errs := o.runs(1, o.ann, args...); !strings.Contains(errs, "operator") {
			o.t.Errorf("ann's %q: %s", args, errs)
		}
	}
}

// imagesChange is what the channel of images pushes.
type imagesChange struct {
	Change string
	Images []struct {
		Name, Digest string
		UsedBy       []string `json:"used_by"`
	}
	Pulls []imagePull
	Pull  *imagePull
}

type imagePull struct {
	ID      string `json:"pull_id"`
	Image   string
	State   string
	Done    int64 `json:"done_bytes"`
	Total   int64 `json:"total_bytes"`
	Problem string
}

// until reads what a channel of images pushes, until it is as is says.
func (o *operating) until(l *live, is func(imagesChange) bool) imagesChange {
	o.t.Helper()
	for {
		m := l.hears()
		if m.Op == "alive" {
			continue
		}
		if m.Op != "data" {
			o.t.Fatalf("%+v", m)
		}
		o.taken++
		l.says(`{"op":"ack","channel":1,"count":%d}`, o.taken)
		var c imagesChange
		text, err := json.Marshal(m.Data)
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err != nil {
			o.t.Fatal(err)
		}
		if is(c) {
			return c
		}
	}
}

func (o *operating) getsImages() {
	l := o.live(o.operator)
	l.says(`{"op":"open","channel":1,"kind":"images"}`)
	if m := l.hears(); m.Op != "opened" {
		o.t.Fatalf("%+v", m)
	}
	slow := o.push("slow:1")
	text := o.asks(202, "POST", "/v1/images", `{"image":"`+slow+`"}`, o.operator)
	var begun struct{ Pull imagePull }
	if err := json.Unmarshal([]byte(text), &begun); err != nil || begun.Pull.State != "running" {
		o.t.Fatalf("%s, %v", text, err)
	}
	half := o.until(l, func(c imagesChange) bool { return c.Pull != nil && c.Pull.Done > 1<<19 })
	if p := half.Pull; p.State != "running" || p.Total < 4<<20 || p.Done >= p.Total || p.Image != slow {
		o.t.Errorf("in the middle: %+v", p)
	}
	o.asks(204, "DELETE", "/v1/pulls/"+begun.Pull.ID, "", o.operator)
	o.until(l, func(c imagesChange) bool {
		return c.Change == "all" && len(c.Pulls) == 1 && c.Pulls[0].State == "failed" &&
			strings.Contains(c.Pulls[0].Problem, "somebody has ended it")
	})
	o.asks(404, "DELETE", "/v1/pulls/"+begun.Pull.ID, "", o.operator)
	o.gate.pass()
	out, errs := o.runs(0, o.operator, "image", "pull", slow)
	if !strings.HasPrefix(out, slow+" is there: sha256:") || !strings.Contains(errs, "loaded") {
		o.t.Errorf("the pull prints %q and %q", out, errs)
	}
	o.until(l, func(c imagesChange) bool { return len(c.Images) == 1 && c.Images[0].Name == slow })
	if _, errs := o.runs(1, o.operator, "image", "pull", "127.0.0.1:1/no:1"); !strings.Contains(errs, "127.0.0.1:1") {
		o.t.Errorf("an image that is not there: %s", errs)
	}
	o.asks(400, "POST", "/v1/images", `{"image":"A B"}`, o.operator)
	o.asks(403, "POST", "/v1/images", `{"image":"`+slow[:strings.Index(slow, ":1")]+`:secret"}`, o.operator)
}

func (o *operating) removesImages() {
	used, free := o.push("used:1"), o.push("free:1")
	o.runs(0, o.operator, "image", "pull", used)
	o.runs(0, o.operator, "image", "pull", free)
	var all []struct {
		Name, Digest string
		UsedBy       []string `json:"used_by"`
	}
	list := func() {
		o.t.Helper()
		out, _ := o.runs(0, o.operator, "image", "list", "--json")
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			o.t.Fatalf("%s, %v", out, err)
		}
	}
	list()
	here, _, code := o.cli("image", "list", "--json")
	there, _ := o.runs(0, o.operator, "image", "list", "--json")
	if code != 0 || here != there {
		o.t.Errorf("on the machine and from elsewhere there are\n%s\n%s", here, there)
	}
	folder := filepath.Join(o.State, "templates")
	for _, one := range all {
		if one.Name != used {
			continue
		}
		// As if a template had been built of it.
		if err := os.MkdirAll(folder, 0o700); err != nil {
			o.t.Fatal(err)
		}
		record := fmt.Sprintf(`{"base": %q, "image": {"ID": %q}}`, one.Digest, one.Digest)
		if err := os.WriteFile(filepath.Join(folder, "mine.json"), []byte(record), 0o600); err != nil {
			o.t.Fatal(err)
		}
		o.asks(400, "DELETE", "/v1/images/"+one.Digest, "", o.operator)
	}
	if _, errs := o.runs(1, o.operator, "image", "remove", used); !strings.Contains(errs, "used by the template mine") {
		o.t.Errorf("an image that a template uses: %s", errs)
	}
	o.runs(0, o.operator, "image", "remove", free)
	o.asks(404, "DELETE", "/v1/images/"+free, "", o.operator)
	list()
	if len(all) != 2 || fmt.Sprint(all[1].UsedBy) != "[mine]" {
		o.t.Errorf("the images are %+v", all)
	}
}

func (o *operating) checksTheMachine() {
	var first struct {
		OK      bool
		Started *string
		Checks  []struct {
			Name, Detail, Remedy string
			OK                   bool
		}
	}
	if err := json.Unmarshal([]byte(o.asks(200, "GET", "/v1/doctor", "", o.operator)), &first); err != nil ||
		first.Started != nil || len(first.Checks) > 0 {
		o.t.Errorf("before the first checkup: %+v, %v", first, err)
	}
	var both sync.WaitGroup
	texts := make([]string, 2)
	for i := range texts {
		both.Go(func() { texts[i] = o.asks(200, "POST", "/v1/doctor", "", o.operator) })
	}
	both.Wait()
	if texts[0] != texts[1] { // one of both waited for the other one's report
		o.t.Errorf("two checkups have run:\n%s\n%s", texts[0], texts[1])
	}
	if err := json.Unmarshal([]byte(texts[0]), &first); err != nil || !first.OK || first.Started == nil {
		o.t.Errorf("%s, %v", texts[0], err)
	}
	booted := false
	for _, c := range first.Checks {
		booted = booted || c.Name == "boot" && c.OK && strings.Contains(c.Detail, "answered 42")
	}
	if !booted {
		o.t.Errorf("no sandbox has booted: %s", texts[0])
	}
	if out, _ := o.runs(0, o.operator, "doctor"); !strings.Contains(out, "answered 42") {
		o.t.Errorf("the command prints %s", out)
	}
	// Settings that are wrong by now fail the checkup, say what to do, and change nothing for the server.
	o.settings("mcp_registries: []\ntemplates: {wrong: {rootfs: /no/such/folder}}\n")
	out, _ := o.runs(1, o.operator, "doctor", "--json")
	var second struct {
		OK     bool
		Checks []struct{ Name, Detail, Remedy string }
	}
	if err := json.Unmarshal([]byte(out), &second); err != nil || second.OK || len(second.Checks) == 0 ||
		second.Checks[len(second.Checks)-1].Remedy == "" {
		o.t.Errorf("with wrong settings: %s, %v", out, err)
	}
	o.settings("mcp_registries: []\npolicy:\n  rules:\n    - deny ann shell.execute *forbidden*\n    - deny * image.pull *:secret\n")
}

func (o *operating) handlesTokens() {
	made, _ := o.runs(0, o.ann, "token", "create", "--scope", "session.list", "--expires", "1h")
	made = strings.TrimSpace(made)
	o.asks(200, "GET", "/v1/sessions", "", made)
	o.asks(403, "GET", "/v1/secrets", "", made)
	out, _ := o.runs(0, o.ann, "token", "list")
	line := ""
	for l := range strings.Lines(out) {
		if strings.Contains(l, "scope session.list") {
			line = l
		}
		if strings.Contains(l, " eve ") {
			o.t.Errorf("ann sees %s", l)
		}
	}
	id, _, _ := strings.Cut(line, " ")
	if out, _ := o.runs(0, o.operator, "token", "list", "--all"); !strings.Contains(out, id) || !strings.Contains(out, " eve ") {
		o.t.Errorf("all tokens: %s", out)
	}
	if out, _ := o.runs(0, o.operator, "token", "list", "--user", "ann", "--json"); !strings.Contains(out, id) {
		o.t.Errorf("ann's tokens: %s", out)
	}
	o.runs(0, o.ann, "token", "revoke", id)
	o.asks(401, "GET", "/v1/sessions", "", made)
	o.runs(1, o.ann, "token", "revoke", id)
	o.runs(1, o.ann, "token", "create", "--user", "bob")
	bobs, _ := o.runs(0, o.operator, "token", "create", "--user", "bob")
	o.asks(200, "GET", "/v1/sessions", "", strings.TrimSpace(bobs))
	if _, errs, code := o.cli("token", "create"); code != 2 || !strings.Contains(errs, "--user is needed") {
		o.t.Errorf("without --server and --user: %d %s", code, errs)
	}
}

func (o *operating) checksRules() {
	if out, _ := o.runs(4, o.operator, "policy", "check", "ann", "shell.execute", "a forbidden word"); !strings.Contains(out,
		"deny ann shell.execute") {
		o.t.Errorf("the operator's question: %s", out)
	}
	if out, _ := o.runs(4, o.ann, "policy", "check", "ann", "shell.execute", "a forbidden word"); strings.Contains(out,
		"deny ann") || !strings.HasPrefix(out, "deny") {
		o.t.Errorf("ann's question: %s", out)
	}
	o.runs(0, o.ann, "policy", "check", "ann", "shell.execute", "ls", "--json")
	o.runs(1, o.ann, "policy", "check", "bob", "shell.execute", "ls")
	o.runs(0, o.operator, "usage", "--all", "--days", "1")
	o.runs(0, o.ann, "usage", "--days", "1")
	o.runs(0, o.operator, "quota", "--user", "ann")
	if _, errs := o.runs(1, o.ann, "mcp", "search", "weather"); !strings.Contains(errs, "no MCP registry") {
		o.t.Errorf("a search without registries: %s", errs)
	}
}

// followsALog follows the log of a third-party server.
func (o *operating) followsALog() {
	agent := o.connect(older, o.ann, nil)
	agent.shell("home", `printf '%s\n' 'import sys, subprocess' 'print("it begins", file=sys.stderr, flush=True)' `+
		`'subprocess.Popen(["sh", "-c", "while :; do cat >&2 </workspace/pipe; done"])' `+
		`'exec(open("/workspace/odd.py").read())' > /workspace/chatty.py; mkfifo /workspace/pipe`)
	o.put(o.ann, "odd.py")
	agent.call("connect_external_mcp", args{"name": "chatty", "command": "python3", "args": []string{"/workspace/chatty.py",
		"plain", "odd"}})
	cmd := o.remote(o.ann, "mcp", "logs", "chatty", "--follow")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		o.t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	reads := func(want string) {
		o.t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		o.t.Errorf("the log ends before %q: %v %s", want, lines.Err(), errs.String())
	}
	reads("it begins")
	agent.shell("home", "echo one more line > /workspace/pipe")
	reads("one more line")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		o.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, pipe)
	if err := cmd.Wait(); err != nil {
		o.t.Errorf("after Ctrl-C: %v %s", err, errs.String())
	}
	if _, errs := o.runs(1, o.token("bob"), "mcp", "logs", "chatty", "--follow"); !strings.Contains(errs, "no connection") {
		o.t.Errorf("bob follows ann's server: %s", errs)
	}
	// When the server is removed, nothing more is to come.
	cmd = o.remote(o.ann, "mcp", "logs", "chatty", "--follow")
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		o.t.Fatal(err)
	}
	lines = bufio.NewScanner(out)
	reads("it begins")
	agent.call("disconnect_external_mcp", args{"connectionId": "chatty", "delete": true})
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "was removed") {
		o.t.Errorf("after its server is gone: %v %s", err, errs.String())
	}
}
