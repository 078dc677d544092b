package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/runtime/docker/dockertest"
)

// TestDaemonByTLS: sessions work, and keep their files, on a daemon that is reached by TCP with TLS.
func TestDaemonByTLS(t *testing.T) {
	t.Parallel()
	d := dockertest.StartTLS(t, "--live-restore")
	t.Cleanup(func() { goneBut(t, d.Remains, "volume sandlot-workspace-") }) // of the home
	s := start(t, "SANDLOT_RUNTIME=docker", "SANDLOT_DOCKER_HOST="+d.Address, "DOCKER_CERT_PATH="+d.Certificates,
		"DOCKER_TLS_VERIFY=1", "SANDBOX_IMAGE="+dockertest.BaseImage, "SANDLOT_POOL_SIZE=1")
	worksElsewhere(t, s, d.Daemon)
}

// TestUnprivilegedServer: a server that is not root, beside a daemon that is, removes what root in its sandboxes wrote.
func TestUnprivilegedServer(t *testing.T) {
	t.Parallel()
	d := dockertest.Start(t, "--live-restore")
	t.Cleanup(func() { goneBut(t, d.Remains, "volume sandlot-workspace-") })
	socket := strings.TrimPrefix(d.Host, "unix://")
	err := errors.Join(os.Chmod(filepath.Dir(socket), 0o711), os.Chown(socket, 0, 65534), os.Chmod(socket, 0o660))
	if err != nil {
		t.Fatal(err)
	}
	s := startUnprivileged(t, "SANDLOT_RUNTIME=docker", "SANDLOT_DOCKER_HOST="+d.Host,
		"SANDBOX_IMAGE="+dockertest.BaseImage, "SANDLOT_POOL_SIZE=1")
	worksElsewhere(t, s, d)
}

// workspaceVolumes counts the volumes of workspaces.
func workspaceVolumes(d *dockertest.Daemon) (n int) {
	for _, left := range d.Remains() {
		if strings.HasPrefix(left, "volume sandlot-workspace-") {
			n++
		}
	}
	return n
}

// worksElsewhere uses a server whose daemon sees none of its files.
func worksElsewhere(t *testing.T, s *server, d *dockertest.Daemon) {
	t.Helper()
	c := s.connect(older, "", nil)
	home := c.code("home", "x = 41; open('/workspace/f', 'w').write('kept')").session()
	provenContainer(t, c, home)
	session := c.code("new", "y = 1; open('/workspace/g', 'w').write('own')").session()
	r := c.shell(session, "mkdir -p d/e && echo x > d/e/f && chmod 0 d/e/f d && id -u; echo v > /tmp/v; chmod 0 /tmp/v")
	if r.Text != "0" {
		t.Fatalf("the sandbox has no root that could write such files: %q", r.All)
	}
	empty := c.code("new", "1 + 1").session()
	s.kill()
	folders, err := filepath.Glob(filepath.Join(s.State, "workspaces", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders { // some backups lack empty folders
		if _, err := os.Stat(f + ".volume"); err == nil {
			err = os.Remove(f)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s.launch()
	transport.CloseIdleConnections()
	c = s.connect(older, "", nil)
	c.want(home, "x + 1, open('/workspace/f').read()", "(42, 'kept')")
	c.want(session, "y + 1, open('/workspace/g').read()", "(2, 'own')")
	until(t, "the pool has its sandbox again", func() bool { return workspaceVolumes(d) == 4 })
	c.call("stop_session", args{"session_id": session})
	c.call("stop_session", args{"session_id": empty})
	until(t, "the volumes of removed sessions are gone", func() bool { return workspaceVolumes(d) == 2 })
	c.call("stop_session", args{"session_id": home})
	r = c.code("home", "open('/workspace/f').read() + str('x' in globals())")
	if !strings.Contains(r.All, "keptFalse") {
		t.Errorf("the home has not kept its files: %q", r.All)
	}
}
