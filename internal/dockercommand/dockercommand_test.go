package dockercommand

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"
)

// TestClient finds the daemon where the docker command does.
func TestClient(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(name, "")
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, want, host, context string) {
		t.Helper()
		c, err := Client(host, context)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer c.Close()
		if got := c.DaemonHost(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("nothing set", client.DefaultDockerHost, "", "")
	for _, name := range []string{"one", "two"} {
		sum := sha256.Sum256([]byte(name))
		write("contexts/meta/"+hex.EncodeToString(sum[:])+"/meta.json",
			`{"Name":"`+name+`","Endpoints":{"docker":{"Host":"unix:///`+name+`","SkipTLSVerify":false}}}`)
	}
	write("config.json", `{"currentContext":"one","auths":{}}`)
	want("the current context", "unix:///one", "", "")
	want("another in the settings", "unix:///two", "", "two")
	t.Setenv("DOCKER_CONTEXT", "two")
	want("another by variable", "unix:///two", "", "")
	t.Setenv("DOCKER_CONTEXT", "default")
	want("the default one", client.DefaultDockerHost, "", "")
	t.Setenv("DOCKER_CONTEXT", "two")
	want("the default one in the settings", client.DefaultDockerHost, "", "default")
	t.Setenv("DOCKER_HOST", "unix:///three")
	want("a host by variable", "unix:///three", "", "")
	want("the default one, with a host by variable", "unix:///three", "", "default")
	want("a host in the settings", "unix:///four", "unix:///four", "")
	for what, c := range map[string][2]string{"both": {"unix:///x", "one"}, "an unknown context": {"", "missing"},
		"no address": {"x", ""}} {
		if _, err := Client(c[0], c[1]); err == nil {
			t.Errorf("accepted: %s", what)
		}
	}
}

// TestTLS: with DOCKER_TLS_VERIFY nothing is said in plain text, and only to the daemon that the certificates name.
func TestTLS(t *testing.T) {
	var asked atomic.Int32
	daemon := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Api-Version", "1.45")
	}))
	daemon.Config.ErrorLog = log.New(io.Discard, "", 0)
	daemon.StartTLS()
	defer daemon.Close()
	plain := httptest.NewServer(daemon.Config.Handler)
	defer plain.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: daemon.Certificate().Raw})
	folder := func(withCA bool) string {
		dir := t.TempDir()
		if withCA {
			if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	context := func(host string, skip, withCA bool) string {
		dir := t.TempDir()
		sum := sha256.Sum256([]byte("one"))
		id := hex.EncodeToString(sum[:])
		meta, certs := filepath.Join(dir, "contexts/meta", id), filepath.Join(dir, "contexts/tls", id, "docker")
		err := errors.Join(os.MkdirAll(meta, 0o700), os.WriteFile(filepath.Join(meta, "meta.json"), fmt.Appendf(nil,
			`{"Endpoints":{"docker":{"Host":%q,"SkipTLSVerify":%t}}}`, host, skip), 0o600))
		if withCA {
			err = errors.Join(err, os.MkdirAll(certs, 0o700), os.WriteFile(filepath.Join(certs, "ca.pem"), ca, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	tcp := func(s *httptest.Server) string { return "tcp://" + s.Listener.Addr().String() }
	for what, tt := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"no TLS": {map[string]string{"DOCKER_HOST": tcp(daemon)}, false},
		"the authority": {map[string]string{"DOCKER_HOST": tcp(daemon), "DOCKER_TLS_VERIFY": "1",
			"DOCKER_CONFIG": folder(true)}, true},
		"a plain one": {map[string]string{"DOCKER_HOST": tcp(plain), "DOCKER_TLS_VERIFY": "1",
			"DOCKER_CONFIG": folder(true)}, false},
		"a plain one, without an authority": {map[string]string{"DOCKER_HOST": tcp(plain), "DOCKER_TLS_VERIFY": "1"},
			false},
		"another authority": {map[string]string{"DOCKER_HOST": tcp(daemon), "DOCKER_TLS_VERIFY": "1"}, false},
		"unverified":        {map[string]string{"DOCKER_HOST": tcp(daemon), "DOCKER_TLS": "1"}, true},
		"unverified, plain": {map[string]string{"DOCKER_HOST": tcp(plain), "DOCKER_TLS": "1"}, false},
		"a folder without certificates": {map[string]string{"DOCKER_HOST": tcp(daemon), "DOCKER_TLS_VERIFY": "1",
			"DOCKER_CERT_PATH": folder(false)}, false},
		"a context": {map[string]string{"DOCKER_CONTEXT": "one",
			"DOCKER_CONFIG": context(tcp(daemon), false, true)}, true},
		"a context, plain": {map[string]string{"DOCKER_CONTEXT": "one",
			"DOCKER_CONFIG": context(tcp(plain), false, true)}, false},
		"a context, skipping": {map[string]string{"DOCKER_CONTEXT": "one",
			"DOCKER_CONFIG": context(tcp(daemon), true, false)}, true},
	} {
		t.Run(what, func(t *testing.T) {
			for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_TLS",
				"DOCKER_CERT_PATH"} {
				t.Setenv(name, tt.env[name])
			}
			t.Setenv("DOCKER_CONFIG", cmp.Or(tt.env["DOCKER_CONFIG"], folder(false)))
			asked.Store(0)
			c, err := Client("", "")
			if err == nil {
				_, err = c.Ping(t.Context(), client.PingOptions{})
				err = errors.Join(err, c.Close())
			}
			if (err == nil) != tt.want || (asked.Load() > 0) != tt.want {
				t.Errorf("%v; the daemon was asked %d times", err, asked.Load())
			}
		})
	}
}

// TestSSHAddresses: an address of a daemon by ssh becomes arguments of ssh, and none of them is an option of the
// address's own making. What ssh says when it fails is said.
func TestSSHAddresses(t *testing.T) {
	for _, bad := range []string{"ssh://", "ssh://a:secret@host", "ssh://host?x=y", "ssh://host#x"} {
		if _, err := Client(bad, ""); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	dir := t.TempDir()
	program := "#!/bin/sh\necho \"refused: $*\" >&2\nexit 255\n"
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	c, err := Client("ssh://-oProxyCommand=x/run/other.sock", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const want = "refused: -o BatchMode=yes -o ConnectTimeout=30 -T -- -oProxyCommand=x docker --host " +
		"unix:///run/other.sock system dial-stdio"
	_, err = c.Info(t.Context(), client.InfoOptions{})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v", err)
	}
}
