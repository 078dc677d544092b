package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/app"
	"sandlot/internal/config"
)

// daemon starts a server that answers as a Docker daemon with these runtimes does, and returns its address.
func daemon(t *testing.T, runtimes ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "doctor") // short: the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{"runc": map[string]any{}}
	for _, name := range runtimes {
		all[name] = map[string]any{"path": name}
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/info"):
			json.NewEncoder(w).Encode(map[string]any{"OSType": "linux", "Runtimes": all, "MemoryLimit": true,
				"PidsLimit": true, "CpuCfsQuota": true})
		case strings.HasSuffix(r.URL.Path, "/version"):
			json.NewEncoder(w).Encode(map[string]any{"ApiVersion": "1.41"})
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return "unix://" + filepath.Join(dir, "socket")
}

// compare returns what there is to be said of each runtime with a daemon.
func compare(t *testing.T, host string, names ...string) map[string]Runtime {
	t.Helper()
	c := &config.Config{}
	bin := t.TempDir()
	c.Runtime.RunscPath, c.Runtime.AgentPath = filepath.Join(bin, "runsc"), filepath.Join(bin, "agent")
	for _, program := range []string{c.Runtime.RunscPath, c.Runtime.AgentPath} {
		if err := os.Symlink("/proc/self/exe", program); err != nil { // any program for this machine
			t.Fatal(err)
		}
	}
	c.Server.StateDir, c.Runtime.Names, c.Docker.Host = t.TempDir(), names, host
	c.Microsandbox.Program = filepath.Join(bin, "msb")
	found := map[string]Runtime{}
	Compare(t.Context(), c, slog.New(slog.NewTextHandler(io.Discard, nil)), func(r Runtime) {
		if r.Works == (r.Missing != "") || r.Isolation == "" || r.Speed == "" || r.Settings == "" {
			t.Errorf("it is not said what there is to say: %+v", r)
		}
		found[r.Name] = r
	})
	if len(found) != 7 {
		t.Errorf("%d runtimes", len(found))
	}
	return found
}

// TestCompare: each runtime either works, or it is said what is missing.
func TestCompare(t *testing.T) {
	all := compare(t, daemon(t, "runsc"), "gvisor", "docker")
	isRoot := os.Getuid() == 0
	for name, want := range map[string]bool{"docker": isRoot, "docker with runsc": true, "docker with kata": false} {
		if all[name].Works != want {
			t.Errorf("%+v", all[name])
		}
	}
	if w := all["docker with runsc"].Warning; !strings.Contains(w, "--net-raw") {
		t.Errorf("the warning of runsc without arguments: %q", w)
	}
	if !all["docker"].InUse || all["docker with runsc"].InUse || all["podman"].InUse {
		t.Errorf("in use: %+v", all)
	}
	if all["gvisor, server as root"].InUse != isRoot || all["gvisor, server without root"].InUse == isRoot {
		t.Errorf("gVisor in use: %+v", all)
	}
	if w := all["docker"].Warning; isRoot && !strings.Contains(w, "live-restore") {
		t.Errorf("Docker's warning: %q", w)
	}
	if m := all["microsandbox"].Missing; !strings.Contains(m, "msb") || !strings.Contains(m, "install microsandbox") {
		t.Errorf("without msb: %q", m)
	}
	if m := all["docker with kata"].Missing; !strings.Contains(m, "has no runtime kata") {
		t.Errorf("Kata: %q", m)
	}
	all = compare(t, "unix:///nowhere/socket", "gvisor")
	if m := all["docker"].Missing; !strings.Contains(m, "unix:///nowhere/socket does not answer") ||
		!strings.Contains(m, "install Docker's engine") || all["docker"].InUse {
		t.Errorf("Docker without a daemon: %+v", all["docker"])
	}
}

// TestMeasured: the figures of a sandbox are told with units, and those that are not known are left out.
func TestMeasured(t *testing.T) {
	r := Runtime{Works: true, Measured: &app.Figures{Boot: 212345678, Call: 1234, Process: 4567890, Memory: 30<<20 + 1}}
	if text := r.String(); !strings.Contains(text, "measured   a sandbox took 212ms to boot; a system call takes 1.23µs, "+
		"a process 4.57ms; it has 31 MB of memory") {
		t.Error(text)
	}
	if text := measured(app.Figures{Boot: 3e9}); text != "a sandbox took 3s to boot" {
		t.Error(text)
	}
}

// TestServerWithoutRoot: what needs a server that is root does not work for another one, whatever a daemon says.
func TestServerWithoutRoot(t *testing.T) {
	c := &config.Config{}
	c.Docker.Host = daemon(t, "kata")
	for _, isRoot := range []bool{true, false} {
		for _, w := range ways(c, isRoot) {
			if w.needs == nil { // Docker's daemon may be rootless
				continue
			}
			if err := w.needs(); strings.Contains(fmt.Sprint(err), "not root") == isRoot {
				t.Errorf("%s, as root: %t: %v", w.Name, isRoot, err)
			}
		}
	}
}

// TestUntried: a runtime that the daemon has is not said to work if nobody has tried it.
func TestUntried(t *testing.T) {
	for _, w := range ways(&config.Config{}, true) {
		r := w.outcome("", nil)
		if isKata := w.Name == "docker with kata"; r.Works == isKata || r.Untried != isKata ||
			strings.Contains(r.String(), "not tried") != isKata {
			t.Errorf("%+v", r)
		}
	}
}

// TestLimits: the doctor says what a runtime in use does not guarantee.
func TestLimits(t *testing.T) {
	c := &config.Config{}
	c.Server.StateDir, c.Runtime.AgentPath = t.TempDir(), "/bin/true"
	c.Runtime.Name, c.Runtime.Names, c.Docker.Host = "docker", []string{"docker"}, daemon(t)
	all, err := app.Runtimes(c, slog.New(slog.DiscardHandler))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d runtimes, %v", len(all), err)
	}
	said := map[string]string{}
	e := &examination{config: c, tell: func(c Check) { said[c.Name] = c.Detail }}
	if !e.checkRuntime(t.Context(), all[0]) || !strings.Contains(said["limits"], "live-restore") {
		t.Errorf("%q", said)
	}
}
