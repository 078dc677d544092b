package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/runtime/docker/dockertest"
)

// TestNetworkAccess: programs reach the network, and nothing that they may not, from containers on kernels without
// iptables: by nftables, or by the explicit proxy. The agents of this test are built to try nothing else.
func TestNetworkAccess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an unprivileged user cannot start Docker's daemon")
	}
	t.Parallel()
	d := dockertest.Start(t)
	w := startWeb(t)
	for access, test := range map[string]func(*testing.T, *web, *server){"nftables": redirected, "proxy": byProxy} {
		t.Run(access, func(t *testing.T) {
			s := start(t, append(w.settings("web.test"), "SANDLOT_AGENT="+agentWith(t, access),
				"SANDLOT_RUNTIME=docker",
				"SANDLOT_DOCKER_HOST="+d.Host, "SANDLOT_NETWORK_REGISTRIES=auto")...)
			test(t, w, s)
			c := s.connect(newer, "", nil)
			for command, want := range map[string]string{
				"pip install -q --no-warn-script-location six && python3 -c 'import six; print(six.__name__)'": "six",
				"npm install -s ms && node -p 'require(\"ms\")(1000)'":                                         "1s",
			} {
				r := c.call("execute_command", args{"command": command, "session_id": "home", "timeout": 120})
				if r.Text != want {
					t.Errorf("%s: %q", command, r.All)
				}
			}
			_, _, text := s.request("POST", "/v1/tools/get_sessions", strings.NewReader("{}"))
			if !strings.Contains(text, `"access":"`+access+`"`) {
				t.Errorf("get_sessions: %s", text)
			}
		})
	}
	if left := d.Remains(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// agentWith builds an agent that tries one access to the network only.
func agentWith(t *testing.T, access string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandlot-agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	out := filepath.Join(dir, "sandlot-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags",
		"-s -w -X sandlot/internal/guest/network.only="+access,
		"-o", out, "../cmd/sandlot-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// redirected: programs need no settings, and cannot change the rules.
func redirected(t *testing.T, w *web, s *server) {
	w.everyWay(t, s)
	c := s.connect(newer, "", nil)
	c.want("home", `import socket, struct
def answer(family, kind, flags, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family); s.settimeout(5)
    s.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    return struct.unpack("=i", s.recv(4096)[16:20])[0]
begin = answer(12, 16, 1, b"\0\0\0\n")                                 # of a batch of nf_tables
address = answer(0, 21, 5, struct.pack("=BBBBIHH4s", 2, 15, 0, 0, 1, 8, 2, bytes([198, 18, 0, 1])))
begin, address`, "(-1, -1)")
	for _, address := range []string{"192.0.2.7:81", "93.184.216.34:443", "169.254.169.254:80"} {
		r := c.shell("home", "curl -sS -m 5 http://"+address+"/")
		if !strings.Contains(r.All, "Network access refused: "+address) {
			t.Errorf("%s: %q", address, r.All)
		}
	}
	if out, _, _ := s.cli("doctor"); !strings.Contains(out, "connections are redirected by nftables") {
		t.Errorf("the doctor says: %s", out)
	}
}

// byProxy: the variables lead programs to the proxy, what is refused is said, and there is no way around it.
func byProxy(t *testing.T, w *web, s *server) {
	c := s.connect(newer, "", nil)
	for _, name := range []string{"curl", "curl, https", "python", "git", "the HTTP proxy", "CONNECT", "SOCKS5"} {
		if r := c.shell("home", w.script(ways[name])); !strings.HasPrefix(r.Text, "hello from web.test") {
			t.Errorf("%s: %q", name, r.All)
		}
	}
	c.want("home", w.script(`import urllib.request as u; u.urlopen("https://web.test:PORT_TLS/hello").read().decode()`),
		"'hello from web.test:"+w.script("PORT_TLS")+"'")
	hits := w.Hits.Load()
	for _, tt := range []struct{ command, says, told string }{
		{"curl -sS -m 5 http://elsewhere.test/", "elsewhere.test was refused: no rule allows it", "elsewhere.test:80"},
		{"curl -sS -m 5 https://elsewhere.test/", "response 403", "elsewhere.test:443"},
		{"curl -sS -m 5 http://192.0.2.7:81/", "192.0.2.7 was refused", "192.0.2.7:81"},
		{"curl -sS -m 5 http://169.254.169.254/", "169.254.169.254 was refused", "169.254.169.254:80"},
		{`python3 -c 'import urllib.request as u; u.urlopen("https://elsewhere.test/")'`, "403 Forbidden",
			"elsewhere.test:443"},
	} {
		r := c.shell("home", tt.command)
		for _, want := range []string{tt.says, "Network access refused: " + tt.told} {
			if !strings.Contains(r.All, want) {
				t.Errorf("%s: no %q in %q", tt.command, want, r.All)
			}
		}
	}
	for _, around := range []string{"http://web.test:PORT/hello", "http://127.0.0.1:PORT/hello", "http://192.0.2.7/"} {
		r := c.shell("home", w.script("curl -sS -m 5 --noproxy '*' "+around))
		if !strings.Contains(r.All, "curl: (7)") {
			t.Errorf("%s: %q", around, r.All)
		}
	}
	// A server in the sandbox does not answer as another machine.
	r := c.shell("home", `python3 -c 'import http.server as h; h.HTTPServer(("", 8099), h.SimpleHTTPRequestHandler).serve_forever()' &
for i in $(seq 100); do curl -sf -o /dev/null --noproxy '*' http://127.0.0.1:8099/ && break; sleep 0.1; done && echo serves
curl -sS -m 5 --noproxy '*' http://10.0.0.5:8099/; kill $!`)
	if !strings.Contains(r.All, "serves") || !strings.Contains(r.All, "curl: (7)") {
		t.Errorf("another machine's address: %q", r.All)
	}
	if w.Hits.Load() != hits {
		t.Error("the machine was reached without the proxy")
	}
	out, _, _ := s.cli("doctor")
	lines := strings.Split(out, "\n")
	if !slices.ContainsFunc(lines, func(l string) bool {
		return strings.Contains(l, "what no rule allows was refused") && strings.Contains(l, "the proxy of HTTP_PROXY")
	}) {
		t.Errorf("the doctor says: %s", out)
	}
}
