package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/runtime/docker/dockertest"
)

// containers runs commands of the docker program with a daemon of the test.
type containers struct {
	t      *testing.T
	daemon *dockertest.Daemon
	dir    string   // in which commands run
	env    []string // more variables for them
}

// newContainers starts a daemon. The docker program's own folder has Compose, as `docker compose`, and nothing else.
func newContainers(t *testing.T) *containers {
	t.Helper()
	c := &containers{t: t, daemon: dockertest.StartNetworked(t), dir: ".."}
	config := t.TempDir()
	plugins := filepath.Join(config, "cli-plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(compose(t), filepath.Join(plugins, "docker-compose")); err != nil {
		t.Fatal(err)
	}
	// Debian has only the classic builder.
	c.env = []string{"DOCKER_HOST=" + c.daemon.Host, "DOCKER_CONFIG=" + config, "DOCKER_BUILDKIT=0"}
	return c
}

// compose returns the path of Docker Compose, which test/tools installs.
func compose(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(tools(t), "py/lib/python3*/site-packages/compose/docker-compose"))
	if len(found) != 1 {
		t.Fatal("no Docker Compose; run `make tools`")
	}
	return found[0]
}

func (c *containers) command(line string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	return cmd
}

// try runs a command line, and returns what it printed.
func (c *containers) try(line string) (string, error) {
	out, err := c.command(line).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run runs a command line that must succeed.
func (c *containers) run(line string) string {
	c.t.Helper()
	cmd := c.command(line)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		log, _ := c.try("docker logs sandlot")
		c.t.Fatalf("%s: %v\n%s%s\nthe log of the container sandlot: %s", line, err, out, &errs, log)
	}
	return strings.TrimSpace(string(out))
}

// printed returns the commands of the first console block of a section of the guide to deployment.
func printed(t *testing.T, section string) []string {
	t.Helper()
	return printedBlocks(t, section)[0]
}

// printedBlocks returns the commands of each console block of a section of that guide.
func printedBlocks(t *testing.T, section string) (blocks [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/guide/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	for {
		var block string
		var found bool
		if _, rest, found = strings.Cut(rest, "```console\n"); !found {
			break
		}
		block, rest, _ = strings.Cut(rest, "```")
		var commands []string
		for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
			if command, found := strings.CutPrefix(strings.TrimSpace(line), "$ "); found {
				commands = append(commands, command)
			}
		}
		blocks = append(blocks, commands)
	}
	if len(blocks) == 0 {
		t.Fatalf("the guide has no commands for %s", section)
	}
	return blocks
}

// status returns a field of what the daemon knows of a container.
func (c *containers) status(container, field string) string {
	c.t.Helper()
	return c.run("docker inspect -f '{{" + field + "}}' " + container)
}

// awaitHealthy waits until the health check of the image has passed.
func (c *containers) awaitHealthy(container string) {
	c.t.Helper()
	for range 600 {
		switch health, _ := c.try("docker inspect -f '{{.State.Health.Status}}' " + container); health {
		case "healthy":
			return
		case "unhealthy":
			c.t.Fatal(c.status(container, "json .State.Health"))
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatalf("%s does not get healthy: %s", container, c.status(container, "json .State"))
}

// connect connects to the published port, as a client on the machine does.
func (c *containers) connect(token string) *client {
	c.t.Helper()
	through := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.daemon.Dial(ctx, network, address)
		}}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(c.t.Context(),
		&mcp.StreamableClientTransport{Endpoint: "http://127.0.0.1:8000/mcp", DisableStandaloneSSE: true,
			HTTPClient: &http.Client{Transport: bearer{token, through}}},
		&mcp.ClientSessionOptions{ProtocolVersion: older})
	if err != nil {
		log, _ := c.try("docker logs sandlot")
		c.t.Fatalf("connecting: %v\n%s", err, log)
	}
	c.t.Cleanup(func() { session.Close() })
	return &client{c.t, session}
}

// TestContainer builds the image of deploy/Dockerfile, and runs it by the commands of the guide: gVisor makes the
// sandboxes of a server that has neither privileges nor the daemon's socket.
func TestContainer(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	proxy := packageSources(t, c.daemon)
	c.buildBases(proxy)
	bases := fmt.Sprintf("--build-arg http_proxy=%s --build-arg GO_IMAGE=%s --build-arg BASE_IMAGE=%s", proxy, goImage,
		debianImage)
	c.run(strings.Replace(printed(t, "Docker")[0], "docker build", "docker build "+bases, 1))
	t.Run("Docker", func(t *testing.T) { c.in(t, "..").byDocker() })
	t.Run("Coolify", func(t *testing.T) { c.in(t, "..").byCoolify(bases) })
	t.Run("Compose", func(t *testing.T) { c.in(t, "../deploy").byCompose(bases) })
	t.Run("Socket", func(t *testing.T) { c.in(t, "../deploy").bySocket() })
}

// in returns c for a subtest whose commands run in a folder.
func (c *containers) in(t *testing.T, dir string) *containers {
	return &containers{t: t, daemon: c.daemon, dir: dir, env: slices.Clone(c.env)}
}

func (c *containers) byDocker() {
	c.t.Cleanup(func() { c.try("docker rm -f sandlot") })
	commands := printed(c.t, "Docker")
	create, start, doctor := commands[1], commands[2], commands[3]
	once := strings.Replace(start, "-d --name sandlot --restart unless-stopped", "--rm", 1)
	if out, err := c.try(once); err == nil || !strings.Contains(out, "there is no token yet") {
		c.t.Errorf("the server starts without a token: %v, %s", err, out)
	}
	profile := "--security-opt seccomp=deploy/seccomp.json"
	if out, err := c.try(strings.Replace(once, profile, "", 1) + " doctor"); err == nil ||
		!strings.Contains(out, "FAIL  boot") {
		c.t.Errorf("sandboxes boot with Docker's own profile: %v, %s", err, out)
	}
	c.environment()
	start = strings.Replace(start, "docker run", "docker run --health-interval 1s", 1)
	token := c.run(create)
	c.run(start)
	c.awaitHealthy("sandlot")
	c.run(doctor)
	c.confined("sandlot")

	alice := c.connect(token)
	session := c.keeps(alice)
	c.run("docker restart -t 10 sandlot")
	c.awaitHealthy("sandlot")
	alice = c.connect(token)
	c.kept(alice, session)
	c.run("docker rm -f sandlot")
	c.run(start)
	c.awaitHealthy("sandlot")
	alice = c.connect(token)
	c.kept(alice, session)

	processes := strings.Split(c.run("docker top sandlot -eo pid,args | tail -n +2"), "\n")
	if !slices.ContainsFunc(processes, func(p string) bool { return strings.Contains(p, "runsc-sandbox") }) {
		c.t.Errorf("no sandbox runs: %q", processes)
	}
	c.run("docker stop -t 10 sandlot")
	if code := c.status("sandlot", ".State.ExitCode"); code != "0" && code != "143" { // 137: it was killed
		c.t.Errorf("the server ended with %s: %s", code, c.run("docker logs --tail 20 sandlot 2>&1"))
	}
	for _, process := range processes {
		if _, err := os.Stat("/proc/" + strings.Fields(process)[0]); err == nil {
			c.t.Errorf("a process outlives its container: %s", process)
		}
	}
	c.run("docker rm sandlot")
}

// environment checks what the guide says of values in docker's own arguments and files.
func (c *containers) environment() {
	file := filepath.Join(c.t.TempDir(), "variables")
	if err := os.WriteFile(file, []byte("B=pa$ss\nC='pa$ss'\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	got := strings.Split(c.run("docker run --rm -e 'A=pa$ss' --env-file "+file+" --entrypoint env sandlot"), "\n")
	for _, want := range []string{"A=pa$ss", "B=pa$ss", "C='pa$ss'"} {
		if !slices.Contains(got, want) {
			c.t.Errorf("the container does not get %s: %q", want, got)
		}
	}
}

// confined checks what the container may do.
func (c *containers) confined(container string) {
	c.t.Helper()
	status, err := os.ReadFile("/proc/" + c.status(container, ".State.Pid") + "/status")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, want := range []string{`Uid:\t1000\t1000\t1000\t1000`, `CapEff:\t0+`, `CapBnd:\t0+`, `NoNewPrivs:\t1`,
		`Seccomp:\t2`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(status) {
			c.t.Errorf("%s is not so: %s", want, status)
		}
	}
	if out, err := c.try("docker exec " + container + " touch /opt/sandlot/new"); err == nil ||
		!strings.Contains(out, "Read-only file system") {
		c.t.Errorf("writing to the root file system: %v, %s", err, out)
	}
}

// keeps leaves a file and a variable in a sandbox of gVisor.
func (c *containers) keeps(alice *client) (session string) {
	c.t.Helper()
	session = alice.code("", `n = 41; print(open("/workspace/kept", "w").write("a file"))`).session()
	proven(c.t, alice, session)
	alice.want(session, "print(n + 1)", "42")
	return session
}

// kept checks what there is of it in a new container: the file.
func (c *containers) kept(alice *client, session string) {
	c.t.Helper()
	r := alice.code(session, `print(open("/workspace/kept").read(), "n" in globals())`)
	if !strings.Contains(r.All, "a file False") || !strings.Contains(r.All, "sandbox was started again") {
		c.t.Errorf("of the old sandbox there is: %q", r.All)
	}
}

// override is what the tests change of deploy/compose.yaml: a quick health check, and a folder of the test for the
// settings, since the daemon would create the one beside the file.
const override = `
services:
  sandlot:
    healthcheck: {interval: 1s}
    volumes: ["%s:/etc/sandlot:ro"]
`

func (c *containers) byCompose(bases string) {
	dir := c.t.TempDir()
	config := filepath.Join(dir, "config")
	err := errors.Join(os.Mkdir(config, 0o755),
		os.WriteFile(filepath.Join(config, "sandlot.yaml"), []byte("max_sessions: 3\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "override.yaml"), fmt.Appendf(nil, override, config), 0o644))
	if err != nil {
		c.t.Fatal(err)
	}
	c.env = append(c.env, "COMPOSE_FILE=compose.yaml:"+filepath.Join(dir, "override.yaml"),
		"COMPOSE_PROJECT_NAME=test")
	commands := printed(c.t, "Docker Compose")
	c.run(commands[0] + " " + bases)
	token := c.run(commands[1])
	c.run(commands[2])
	c.awaitHealthy("test-sandlot-1")
	c.run(commands[3])
	c.confined("test-sandlot-1")
	if out := c.run("docker compose exec sandlot sandlot config"); !regexp.MustCompile(
		`(?m)^max_sessions: +"3"`).MatchString(out) {
		c.t.Errorf("the settings file is not read: %s", out)
	}
	session := c.keeps(c.connect(token))
	c.run("docker compose down -t 10")
	c.run(commands[2])
	c.awaitHealthy("test-sandlot-1")
	c.kept(c.connect(token), session)
	c.run("docker compose down -t 10 --volumes")
	if remains := c.daemon.Remains(); slices.ContainsFunc(remains, func(r string) bool {
		return !strings.HasPrefix(r, "volume sandlot") // of the container without Compose
	}) {
		c.t.Errorf("this is left: %q", remains)
	}
}

// bySocket runs the server with the socket of its own daemon, which makes the sandboxes, of the server's image.
func (c *containers) bySocket() {
	dir := c.t.TempDir()
	socket := strings.TrimPrefix(c.daemon.Host, "unix://")
	err := errors.Join(os.Mkdir(filepath.Join(dir, "config"), 0o755), os.WriteFile(filepath.Join(dir, "override.yaml"),
		fmt.Appendf(nil, override, filepath.Join(dir, "config")), 0o644))
	if err != nil {
		c.t.Fatal(err)
	}
	commands := printed(c.t, "Docker Compose, with Docker's sandboxes")
	group, found := strings.CutPrefix(commands[0], "export DOCKER_GROUP=$(")
	group = strings.ReplaceAll(strings.TrimSuffix(group, ")"), "/var/run/docker.sock", socket)
	file, found2 := strings.CutPrefix(commands[1], "export COMPOSE_FILE=")
	if !found || !found2 {
		c.t.Fatalf("the guide's commands are %q", commands)
	}
	c.env = append(c.env, "COMPOSE_FILE="+file+":"+filepath.Join(dir, "override.yaml"), "COMPOSE_PROJECT_NAME=socket",
		"SANDBOX_IMAGE=sandlot", "DOCKER_SOCKET="+socket)
	if out, err := c.try(commands[4]); err == nil || !strings.Contains(out, "stat -c %g") {
		c.t.Errorf("it starts without the socket's group: %v, %s", err, out)
	}
	c.env = append(c.env, "DOCKER_GROUP="+c.run(group))
	before := c.daemon.Remains()
	token := c.run(commands[3])
	c.run(commands[4])
	c.awaitHealthy("socket-sandlot-1")
	c.run(commands[5])

	alice := c.connect(token)
	session := alice.code("", `n = 41; print(open("/workspace/kept", "w").write("a file"))`).session()
	provenContainer(c.t, alice, session)
	if r := alice.shell(session, "ls /var/run/docker.sock /run/docker.sock"); !strings.Contains(r.All, "No such file") {
		c.t.Errorf("a sandbox sees the daemon's socket: %q", r.All)
	}
	for _, again := range []string{"docker compose restart -t 10", "docker compose down -t 10 && " + commands[4]} {
		c.run(again)
		c.awaitHealthy("socket-sandlot-1")
		alice = c.connect(token)
		alice.want(session, `print(n + 1, open("/workspace/kept").read())`, "42 a file")
	}
	for _, command := range printedBlocks(c.t, "Docker Compose, with Docker's sandboxes")[1] {
		c.run(command)
	}
	if remains := c.daemon.Remains(); !slices.Equal(remains, before) {
		c.t.Errorf("this is left: %q, before it was %q", remains, before)
	}
}
