package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/runtime/microsandbox/msbtest"
)

func TestMain(m *testing.M) {
	msbtest.Main() // where this process is a fake of msb
	os.Exit(m.Run())
}

// TestMicrosandbox: a client of microsandbox's old server goes on with its variables, templates and flavors. The server
// is killed and started again, beside gVisor by the templates, and nothing is left.
func TestMicrosandbox(t *testing.T) {
	t.Parallel()
	msb := "SANDLOT_MICROSANDBOX_MSB=" + msbtest.Install(t, filepath.Dir(binary(t)), msbtest.Options{})
	s := start(t, "MSB_SERVER_URL=http://127.0.0.1:5555", "MSB_API_KEY=treasure", msb, "SANDLOT_ON_STOP=keep")
	for _, want := range []string{"MSB_SERVER_URL chooses the runtime microsandbox", "removed such servers in March 2026",
		"MSB_API_KEY is set and not used"} {
		if log := s.log.String(); !strings.Contains(log, want) || strings.Contains(log, "treasure") {
			t.Errorf("%q is not in the log, or the key is: %s", want, log)
		}
	}
	c := s.connect(older, "", nil)
	var r *result
	until(t, "the template is ready", func() bool {
		var err error
		r, err = c.try(t.Context(), "execute_code", args{"template": "python", "flavor": "medium", "session_id": "new",
			"code": "import os\nx = 41\nopen('/workspace/f', 'w').write('kept')\n" +
				"os.environ.get('OF_IMAGE'), os.environ.get('MSB_OF_THE_FAKE'), os.getuid()"})
		return err == nil
	})
	if !strings.Contains(r.Text, "('yes', None, 0)") {
		t.Errorf("in a sandbox: %q", r.All)
	}
	session := r.session()
	if r := c.shell(session, "dmesg 2>/dev/null | grep -c gVisor; cat /proc/net/dev | grep -c eth0; "+
		"timeout 20 bash -c 'exec 3<>/dev/tcp/192.0.2.1/9; head -c 1 <&3' 2>&1 | tail -1"); !strings.HasPrefix(r.Text, "1\n0\n") {
		t.Errorf("the fake's sandbox: %q", r.All)
	} else if refused, _ := r.Fields["network_refused"].([]any); len(refused) != 1 {
		t.Errorf("the broker is not the way out: %v", r.Fields)
	}
	shown := func() {
		t.Helper()
		for _, b := range s.ps(false).Sandboxes {
			if b.Session == session && b.Runtime == "microsandbox" && b.MemoryBytes > 1<<20 {
				return
			}
		}
		t.Errorf("ps does not show the sandbox: %+v", s.ps(false))
	}
	shown()
	s.kill()
	shown()
	transport.CloseIdleConnections()
	s.env = append(s.env[:len(s.env):len(s.env)], "MSB_SERVER_URL=", "SANDLOT_RUNTIMES=gvisor,microsandbox",
		"SANDLOT_RUNTIME=microsandbox")
	s.launch()
	c = s.connect(older, "", nil)
	c.want(session, "x + 1, open('/workspace/f').read()", "(42, 'kept')")
	if out, errs, code := s.cli("sessions", "stop", "--all"); code != 0 {
		t.Errorf("%s%s", out, errs)
	}
}
