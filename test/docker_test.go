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

// onDocker are the tests that run a second time, with sandboxes on Docker: those whose subject is what happens in a
// sandbox, or becomes of one. The others have the server as their subject, and a sandbox only where their calls end;
// or what gVisor alone has: snapshots, sealed volumes, a server without root, control groups of the server's own, the
// machine's network, and sandboxes that are found when their state folder was deleted.
var onDocker = map[string]func(*testing.T){
	"TestAttacks": TestAttacks, "TestEscapes": TestEscapes, "TestUsers": TestUsers,
	"TestNetworkAttacks": TestNetworkAttacks, "TestHostileAgent": TestHostileAgent,

	"TestTools": TestTools, "TestCode": TestCode, "TestTimeLimit": TestTimeLimit, "TestCancellation": TestCancellation,
	"TestProgress": TestProgress, "TestCommands": TestCommands, "TestBackground": TestBackground,
	"TestStopCode": TestStopCode, "TestFiles": TestFiles, "TestFilesAPI": TestFilesAPI, "TestTurns": TestTurns,
	"TestResultShapes": TestResultShapes, "TestCommandLine": TestCommandLine, "TestTerminal": TestTerminal,
	"TestVolumes": TestVolumes, "TestTheClientIsKilled": TestTheClientIsKilled,

	"TestBoundSecret": TestBoundSecret, "TestVariablesOfSessions": TestVariablesOfSessions,

	"TestServerKilled": TestServerKilled, "TestSandboxKilled": TestSandboxKilled, "TestGracefulStop": TestGracefulStop,
	"TestIdle": TestIdle, "TestLimits": TestLimits, "TestDiskFull": TestDiskFull, "TestFolders": TestFolders,
	"TestOnStop": TestOnStop, "TestPsAndStop": TestPsAndStop, "TestOrphanTimeout": TestOrphanTimeout,
	"TestKilledWhileRecovering": TestKilledWhileRecovering, "TestDay": TestDay,

	"TestNetwork": TestNetwork, "TestNetworkRefused": TestNetworkRefused, "TestNetworkChanges": TestNetworkChanges,
	"TestNetworkServerKilled": TestNetworkServerKilled, "TestNetworkLimit": TestNetworkLimit,

	"TestPorts": TestPorts, "TestPortsNothingListens": TestPortsNothingListens,
	"TestPortsWebSocket": TestPortsWebSocket, "TestPortsForward": TestPortsForward, "TestPortsFlood": TestPortsFlood,

	"TestConnection": TestConnection, "TestShellExec": TestShellExec, "TestConnectionFaults": TestConnectionFaults,
	"TestConnectionPasses": TestConnectionPasses, "TestConnectionChanges": TestConnectionChanges,
	"TestConnectionUsers": TestConnectionUsers, "TestConnectionServerKilled": TestConnectionServerKilled,
	"TestThirdParty": TestThirdParty, "TestManyCycles": TestManyCycles,
}

// daemons has the daemon on which the sandboxes of a test run, by the test's name.
var daemons sync.Map

// daemonOf returns the daemon on which the sandboxes of a test run, or nil: they are gVisor's.
func daemonOf(t *testing.T) *dockertest.Daemon {
	name, _, _ := strings.Cut(t.Name(), "/")
	d, _ := daemons.Load(name)
	daemon, _ := d.(*dockertest.Daemon)
	return daemon
}

// startDaemon starts a Docker daemon for the sandboxes of a test and of all below it.
func startDaemon(t *testing.T, args ...string) *dockertest.Daemon {
	t.Helper()
	d := dockertest.Start(t, args...)
	daemons.Store(t.Name(), d)
	return d
}

// TestDocker runs the tests of onDocker side by side, with one daemon. Nothing is left of them on it.
func TestDocker(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "--live-restore")
	t.Run("each", func(t *testing.T) {
		for name, test := range onDocker {
			t.Run(strings.TrimPrefix(name, "Test"), func(t *testing.T) {
				t.Parallel()
				t.Run("test", test) // which may be parallel itself
			})
		}
		t.Run("both runtimes", bothRuntimes)
	})
	gone(t, d)
}

// TestMappedUsers: with a daemon that maps users, workspaces belong to those who are root in sandboxes.
func TestMappedUsers(t *testing.T) {
	t.Parallel()
	runSome(t, dockertest.StartRemapped(t))
}

// TestPodman runs some of onDocker with Podman's service.
func TestPodman(t *testing.T) {
	t.Parallel()
	runSome(t, dockertest.StartPodman(t))
}

// runSome runs some tests of onDocker with another daemon, side by side. Nothing is left of them on it.
func runSome(t *testing.T, d *dockertest.Daemon) {
	daemons.Store(t.Name(), d)
	t.Run("each", func(t *testing.T) {
		for _, name := range []string{"TestCode", "TestFiles", "TestServerKilled"} {
			t.Run(strings.TrimPrefix(name, "Test"), func(t *testing.T) {
				t.Parallel()
				t.Run("test", onDocker[name])
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
