package test

import (
	"strings"
	"testing"
)

// refusedHosts are the hosts in a list of refusals, each with its port, cause and program.
func refusedHosts(list any) (all []map[string]any) {
	entries, _ := list.([]any)
	for _, e := range entries {
		if m, ok := e.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// TestRefusalsAsData: a result says as data why a connection was refused, by which rule, and which program made it.
func TestRefusalsAsData(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, append(w.settings("web.test"), "SANDLOT_NETWORK_ALLOW=other.test:7")...)
	c := s.connect(newer, "", nil)
	const dial = "import socket\ntry: socket.create_connection((%q, PORT), 10)\nexcept OSError: pass"
	for _, tt := range []struct {
		name    string
		run     func() *result
		host    string
		cause   string
		rule    string
		program string
	}{
		{"a name", func() *result { return c.shell("home", w.script("curl -sS -m 5 http://elsewhere.test:PORT/; echo $?")) },
			"elsewhere.test", "not_listed", "", "curl"},
		{"an address", func() *result { return c.shell("home", "curl -sS -m 5 http://192.0.2.7:81/; echo $?") },
			"192.0.2.7", "not_listed", "", "curl"},
		{"another port", func() *result { return c.shell("home", w.script("curl -sS -m 5 http://other.test:PORT/; echo $?")) },
			"other.test", "other_port", "other.test:7", "curl"},
		{"an address that is not public", func() *result {
			return c.shell("home", "curl -sS -m 5 http://other.test:7/; echo $?")
		}, "other.test", "not_public", "", "curl"},
		{"by the proxy", func() *result {
			return c.shell("home", "curl -sS -m 5 -o /dev/null -x http://127.0.0.1:3128 http://elsewhere.test/; echo $?")
		}, "elsewhere.test", "not_listed", "", "curl"},
		{"a cell", func() *result { return c.code("home", w.script(strings.Replace(dial, "%q", "'cell.test'", 1))) },
			"cell.test", "not_listed", "", "python"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := refusedHosts(tt.run().Fields["network_refused"])
			if len(list) != 1 {
				t.Fatalf("%v", list)
			}
			x := list[0]
			rule, _ := x["rule"].(string)
			program, _ := x["program"].(string)
			pid, _ := x["pid"].(float64)
			if x["host"] != tt.host || x["cause"] != tt.cause || rule != tt.rule ||
				!strings.HasPrefix(program, tt.program) || pid < 2 {
				t.Errorf("%v", x)
			}
		})
	}
	t.Run("a process in the background", func(t *testing.T) {
		r := c.call("execute_command", args{"command": w.script("sh -c 'curl -sS -m 5 http://back.test:PORT/; echo over; sleep 1000'"),
			"background": true, "session_id": "home"})
		id, _ := r.Fields["process_id"].(string)
		read := c.call("read_process", args{"process_id": id, "until": "over", "wait": 30})
		list := refusedHosts(read.Fields["network_refused"])
		if len(list) != 1 || list[0]["host"] != "back.test" || list[0]["process_id"] != id || list[0]["program"] != "curl" {
			t.Errorf("%v, want of %s", list, id)
		}
		c.call("stop_process", args{"process_id": id, "signal": "KILL"})
	})
	out, errs, code := s.cli("events", "--kind", "egress", "--json", "--limit", "1000")
	if code != 0 || !strings.Contains(out, `"cause":"other_port"`) || !strings.Contains(out, `"program":"curl"`) {
		t.Errorf("events: %d %s%s", code, out, errs)
	}
}

// TestRefusedTools: what a third-party tool was refused is told with that tool's result, whatever of its server's
// programs it was, and never with the result of somebody else; what code that calls it was refused is told with the
// code's result.
func TestRefusedTools(t *testing.T) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, w.settings("web.test")...)
	s.put("", "reach.py")
	c := s.connect(newer, "", nil)
	r := c.call("connect_external_mcp", args{"name": "reach", "command": "python3", "args": []string{"/workspace/reach.py"}})
	if r.IsError {
		t.Fatal(r.All)
	}
	silent := func(t *testing.T, after string) {
		t.Helper()
		for _, other := range []*result{c.code("home", "1"), c.shell("home", "true"), c.call(r.exposed(t, "quiet"), args{})} {
			if strings.Contains(other.All, "efused") || other.Fields["network_refused"] != nil {
				t.Errorf("%s: told with another result: %q", after, other.All)
			}
		}
	}
	for _, tool := range []string{"itself", "child", "daemon"} {
		for host, told := range map[string]string{"name.test": "name.test:443", "192.0.2.7": "192.0.2.7:443"} {
			t.Run(tool+" "+host, func(t *testing.T) {
				got := c.call(r.exposed(t, tool), args{"host": host, "port": 443})
				if !strings.HasPrefix(got.Text, "not reached") || !strings.Contains(got.All, "Network access refused: "+told) {
					t.Errorf("%q", got.All)
				}
				if got.Fields["said"] == nil || got.Fields["network_refused"] != nil {
					t.Errorf("the server's own data: %v", got.Fields)
				}
				list := refusedHosts(got.Meta["sandlot/network_refused"])
				if len(list) != 1 || list[0]["host"] != host || list[0]["port"] != 443.0 || list[0]["cause"] != "not_listed" ||
					!strings.HasPrefix(list[0]["program"].(string), "python") {
					t.Errorf("as data: %v", got.Meta)
				}
				silent(t, tool)
			})
		}
	}
	t.Run("an error", func(t *testing.T) {
		if _, err := c.try(t.Context(), r.exposed(t, "fails"), args{"host": "error.test", "port": 443}); err == nil ||
			!strings.Contains(err.Error(), "not reached") || !strings.Contains(err.Error(), "refused: error.test:443") {
			t.Errorf("%v", err)
		}
		silent(t, "an error")
	})
	t.Run("others at the same time", func(t *testing.T) {
		done := make(chan *result, 1)
		go func() {
			done <- c.shell("home", w.script("for i in 1 2 3 4 5; do curl -sS -m 5 http://mine.test:PORT/; done; true"))
		}()
		for range 5 {
			got := c.call(r.exposed(t, "itself"), args{"host": "its.test", "port": 443})
			if !strings.Contains(got.All, "its.test") || strings.Contains(got.All, "mine.test") {
				t.Errorf("the tool: %q", got.All)
			}
		}
		if got := <-done; !strings.Contains(got.All, "refused: mine.test") || strings.Contains(got.All, "its.test") {
			t.Errorf("the command: %q", got.All)
		}
		silent(t, "both")
	})
	t.Run("called by code", func(t *testing.T) {
		for _, session := range []string{"home", "new"} {
			got := c.code(session, "from mcp_tools import reach\nreach.itself(host='code.test', port=443)")
			list := refusedHosts(got.Fields["network_refused"])
			if len(list) != 1 || list[0]["host"] != "code.test" || strings.Contains(got.Text, "Network access") {
				t.Errorf("in %s: %q, %v", session, got.All, list)
			}
			silent(t, "code")
		}
	})
	t.Run("at the start", func(t *testing.T) {
		_, err := c.try(t.Context(), "connect_external_mcp", args{"name": "needs", "command": "python3",
			"args": []string{"/workspace/reach.py", "needed.test"}})
		if err == nil || !strings.Contains(err.Error(), "needed.test: no rule allows it") {
			t.Errorf("%v", err)
		}
		silent(t, "the start")
	})
}
