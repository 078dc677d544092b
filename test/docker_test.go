package test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	daemonapi "github.com/moby/moby/client"

	"sandlot/internal/runtime/docker/dockertest"
)

// Tests whose subject is what happens in a sandbox, or becomes of one, run again with sandboxes on Docker. The others
// have the server as their subject, and a sandbox only where their calls end; or what gVisor alone has: snapshots,
// sealed volumes, a server without root, control groups of the server's own, the machine's network, and sandboxes that
// are found when their state folder was deleted.
//
// A daemon is on the server's machine (TestDocker, TestDockerMore), or elsewhere, as a Mac's is (TestMac). onBoth are the
// tests that depend on where it is, and run with both: files and folders, the way out, servers that are killed, and what
// tries to leave a sandbox. All others run once. onDocker are those whose subject is the kernel that server and
// sandboxes share, and what a daemon refuses. onDockerMore are those whose subject is the server, the broker or the agent
// beside containers, in ordinary work, at ends and under load: the campaign runs them. onElsewhere are those that are the same wherever
// the daemon is, since only the server and the agent take part: together the daemons cover each test.
var onBoth = map[string]func(*testing.T){
	"TestFiles": TestFiles, "TestFolders": TestFolders, "TestEscapes": TestEscapes, "TestServerKilled": TestServerKilled,
	"TestNetwork": TestNetwork,
}

// onBothMore: see onBoth; the campaign runs these with a daemon on the server's machine, too.
var onBothMore = map[string]func(*testing.T){
	"TestVolumes": TestVolumes, "TestKilledWhileRecovering": TestKilledWhileRecovering,
	"TestNetworkServerKilled": TestNetworkServerKilled,
	"TestCode":                TestCode, "TestDiskFull": TestDiskFull, "TestPorts": TestPorts,
}

// onDocker: see onBoth.
var onDocker = map[string]func(*testing.T){
	"TestAttacks": TestAttacks, "TestNotPermitted": testNotPermitted, "TestNetworkRefused": TestNetworkRefused,
}

// onDockerMore: see onBoth.
var onDockerMore = map[string]func(*testing.T){
	"TestPortsForward": TestPortsForward, "TestOnStop": TestOnStop, "TestOrphanTimeout": TestOrphanTimeout,

	"TestNetworkAttacks": TestNetworkAttacks, "TestNetworkChanges": TestNetworkChanges, "TestNetworkLimit": TestNetworkLimit,
	"TestPortsNothingListens": TestPortsNothingListens, "TestPortsWebSocket": TestPortsWebSocket,
	"TestPortsFlood": TestPortsFlood,

	"TestConnectionServerKilled": TestConnectionServerKilled, "TestCodeToolsServerKilled": TestCodeToolsServerKilled,

	"TestUsers": TestUsers, "TestImagePool": testImagePool, "TestSandboxKilled": TestSandboxKilled,
	"TestCodeTools": TestCodeTools,
}

// onElsewhere: see onBoth.
var onElsewhere = map[string]func(*testing.T){
	"TestTools": TestTools, "TestTimeLimit": TestTimeLimit, "TestCancellation": TestCancellation,
	"TestProgress": TestProgress, "TestCommands": TestCommands, "TestBackground": TestBackground,
	"TestFilesAPI": TestFilesAPI, "TestGracefulStop": TestGracefulStop, "TestPsAndStop": TestPsAndStop,
	"TestStopCode": TestStopCode, "TestTurns": TestTurns, "TestResultShapes": TestResultShapes,
	"TestCommandLine": TestCommandLine, "TestTerminal": TestTerminal, "TestTheClientIsKilled": TestTheClientIsKilled,

	"TestBoundSecret": TestBoundSecret, "TestVariablesOfSessions": TestVariablesOfSessions,
	"TestIdle": TestIdle, "TestLimits": TestLimits, "TestDay": TestDay,

	"TestConnection": TestConnection, "TestShellExec": TestShellExec, "TestConnectionFaults": TestConnectionFaults,
	"TestConnectionPasses": TestConnectionPasses, "TestConnectionChanges": TestConnectionChanges,
	"TestConnectionUsers": TestConnectionUsers, "TestThirdParty": TestThirdParty, "TestManyCycles": TestManyCycles,
}

// site is where the sandboxes of a test are, if they are not gVisor's.
type site struct {
	daemon  *dockertest.Daemon
	program string // the server's; empty: as `make build` has made it
	home    string // the user's home folder; empty: that of the test's user
}

// sites has where the sandboxes of a test and of all below it are, by the test's name.
var sites sync.Map

func siteOf(t testing.TB) site {
	name, _, _ := strings.Cut(t.Name(), "/")
	s, _ := sites.Load(name)
	found, _ := s.(site)
	return found
}

// daemonOf returns the daemon on which the sandboxes of a test are, or nil: they are gVisor's.
func daemonOf(t testing.TB) *dockertest.Daemon { return siteOf(t).daemon }

// startDaemon starts a Docker daemon for the sandboxes of a test and of all below it.
func startDaemon(t *testing.T, args ...string) *dockertest.Daemon {
	t.Helper()
	d := dockertest.Start(t, args...)
	sites.Store(t.Name(), site{daemon: d})
	return d
}

// TestDocker runs the tests of onBoth and onDocker side by side, with one daemon. Nothing is left of them on it.
func TestDocker(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "--live-restore")
	t.Run("each", func(t *testing.T) {
		runAll(t, onBoth)
		runAll(t, onDocker)
		t.Run("both runtimes", bothRuntimes)
	})
	gone(t, d)
}

// TestDockerMore is TestDocker for onBothMore and onDockerMore.
func TestDockerMore(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "--live-restore")
	t.Run("each", func(t *testing.T) {
		runAll(t, onBothMore)
		runAll(t, onDockerMore)
	})
	gone(t, d)
}

// runAll runs tests side by side.
func runAll(t *testing.T, tests map[string]func(*testing.T)) {
	for name, test := range tests {
		t.Run(strings.TrimPrefix(name, "Test"), func(t *testing.T) {
			t.Parallel()
			t.Run("test", test) // which may be parallel itself
		})
	}
}

// TestMappedUsers: with a daemon that maps users, workspaces belong to those who are root in sandboxes.
func TestMappedUsers(t *testing.T) {
	t.Parallel()
	runSome(t, dockertest.StartRemapped(t))
}

// TestPodman runs some of onBoth with Podman's service.
func TestPodman(t *testing.T) {
	t.Parallel()
	runSome(t, dockertest.StartPodman(t))
}

// runSome runs some tests of onBoth with another daemon, side by side. Nothing is left of them on it.
func runSome(t *testing.T, d *dockertest.Daemon) {
	sites.Store(t.Name(), site{daemon: d})
	t.Run("each", func(t *testing.T) {
		for _, name := range []string{"TestFiles", "TestFolders", "TestServerKilled"} {
			t.Run(strings.TrimPrefix(name, "Test"), func(t *testing.T) {
				t.Parallel()
				t.Run("test", onBoth[name])
			})
		}
	})
	gone(t, d)
}

// gone waits until a daemon has nothing.
func gone(t *testing.T, d *dockertest.Daemon) {
	t.Helper()
	goneBut(t, d.Remains)
}

// goneBut waits until there is nothing on a daemon but what is expected.
func goneBut(t *testing.T, remains func() []string, but ...string) {
	t.Helper()
	var left []string
	for range 100 {
		if left = remains(); len(left) == len(but) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, b := range but {
		if !strings.Contains(fmt.Sprint(left), b) {
			t.Errorf("%s is gone", b)
		}
	}
	if len(left) != len(but) {
		t.Errorf("this is left on the daemon: %q", left)
	}
}

// containers lists the containers of the server's sandboxes; "process container" is one that runs.
func (s *server) containers() (found []string) {
	if s.docker == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := s.docker.Client.ContainerList(ctx, daemonapi.ContainerListOptions{All: true,
		Filters: make(daemonapi.Filters).Add("label", "dev.sandlot.state="+s.State)})
	if err != nil {
		return []string{"perhaps containers: " + err.Error()}
	}
	for _, c := range list.Items {
		kind := "container "
		if c.State == "running" {
			kind = "process container "
		}
		found = append(found, kind+strings.Join(c.Names, " "))
	}
	return found
}

// provenContainer says that a session is a container: it has the agent, which this machine has not, and namespaces of
// its own.
func provenContainer(t *testing.T, c *client, session string) {
	t.Helper()
	if _, err := os.Stat("/.sandlot/agent"); err == nil {
		t.Fatal("this machine has /.sandlot/agent, by which the tests know a sandbox")
	}
	r := c.shell(session, "test -x /.sandlot/agent && readlink /proc/self/ns/pid /proc/self/ns/mnt /proc/self/ns/net")
	inside := strings.Fields(r.Text)
	for i, kind := range []string{"pid", "mnt", "net"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil || len(inside) != 3 || !strings.HasPrefix(inside[i], kind+":[") || inside[i] == own {
			t.Fatalf("this is no sandbox: %q", r.All)
		}
	}
}

// testImagePool: POOL_SIZE with SANDBOX_IMAGE, as a container of the system that Sandlot succeeds has them, boots so many
// sandboxes of that image, and no others.
func testImagePool(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDBOX_IMAGE="+dockertest.BaseImage, "POOL_SIZE=3")
	until(t, "three sandboxes wait", func() bool { return len(s.ps(false).Sandboxes) == 3 })
	c := s.connect(newer, "", nil)
	if r := c.code("new", "print(6*7)"); r.Text != "42" {
		t.Error(r.All)
	}
	until(t, "three wait again", func() bool {
		waiting := 0
		for _, b := range s.ps(false).Sandboxes {
			if b.Session == "" {
				waiting++
			}
		}
		return waiting == 3
	})
	if n := len(s.ps(false).Sandboxes); n != 4 {
		t.Errorf("%d sandboxes", n)
	}
}
