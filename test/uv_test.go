package test

import (
	"fmt"
	"strings"
	"testing"
)

// TestInstallWithUV: where the home has uv, a server of PyPI is installed with it. Its first start stores what Python
// has compiled, and only there. Caches are outside of the workspace, unless the user's own variables say so.
func TestInstallWithUV(t *testing.T) {
	t.Parallel()
	s := start(t, registries()...)
	c := s.connect(older, "", nil)
	c.shell("home", "pip install -q uv && uv --version")
	r := c.call("auto_install_and_connect_mcp", args{"name": "clock",
		"install": args{"type": "pip", "spec": "mcp-server-time"},
		"start":   args{"command": "mcp-server-time", "args": []string{"--local-timezone=UTC"}}})
	installed, _ := r.Fields["installed"].(map[string]any)
	if commands := fmt.Sprint(installed["commands"]); !strings.Contains(commands, "uv pip install --python") ||
		strings.Contains(commands, "-m pip") {
		t.Errorf("it was installed with %s", commands)
	}
	got := c.call(r.exposed(t, "get_current_time"), args{"timezone": "Asia/Tokyo"})
	if !strings.Contains(got.All, "Asia/Tokyo") {
		t.Errorf("the server answers %q", got.All)
	}
	for command, want := range map[string]string{
		`find /workspace/external-mcp/clock/venv -path '*mcp_server_time*' -name '*.pyc' | grep -q . && echo some`: "some",
		`cd /workspace && echo 'x = 1' > module.py && python3 -c 'import module' && ls | grep -c pycache`:          "0",
		`ls -a /workspace | grep -ic cache`:         "0",
		`test -d "$(uv cache dir)" && uv cache dir`: "/root/.cache/uv",
		`pip cache dir`:        "/root/.cache/pip",
		`npm config get cache`: "/root/.npm",
		`python3 -c 'import tempfile; print(tempfile.gettempdir())'`:                         "/tmp",
		`PIP_CACHE_DIR=/workspace/own pip cache dir`:                                         "/workspace/own",
		`UV_CACHE_DIR=/workspace/own uv cache dir`:                                           "/workspace/own",
		`npm_config_cache=/workspace/own npm config get cache`:                               "/workspace/own",
		`test "$(stat -c %d /root /tmp | uniq)" != "$(stat -c %d /workspace)" && echo other`: "other",
	} {
		if out := strings.TrimSpace(c.shell("home", command).Text); out != want {
			t.Errorf("%s: %q, not %q", command, out, want)
		}
	}
}
