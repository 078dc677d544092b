package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sandlot/test/golden"
)

// shape is what a JSON value is made of: the names and kinds, without the values.
// Elements of a list that are alike are one.
func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = shape(e)
		}
		return out
	case []any:
		kinds := map[string]any{}
		for _, e := range v {
			s := shape(e)
			b, _ := json.Marshal(s)
			kinds[string(b)] = s
		}
		out := []any{}
		for _, k := range slices.Sorted(maps.Keys(kinds)) {
			out = append(out, kinds[k])
		}
		return out
	case nil:
		return "null"
	}
	return fmt.Sprintf("%T", v)
}

// TestResultShapes: what programs read of results keeps its names and kinds, until
// somebody changes testdata/results.json on purpose (-update).
func TestResultShapes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	id, process := "", ""
	connect := args{"name": "odd", "command": "python3", "args": []string{"/workspace/odd.py", "plain", "odd"},
		"env": args{"A": "b"}}
	got := map[string]any{}
	for _, call := range []struct {
		name, tool string
		a          args
	}{
		{"code", "execute_code", args{"code": "print('a')\n1 + 1"}},
		{"code that raises", "execute_code", args{"code": "1/0", "session_id": "ID"}},
		{"code without a value", "execute_code", args{"code": "x = 1", "session_id": "ID"}},
		{"code that dies", "execute_code", args{"code": "import os; os._exit(3)", "session_id": "ID"}},
		{"code with much output", "execute_code", args{"code": "print('x' * 200000)", "session_id": "ID"}},
		{"code that prints bytes", "execute_code",
			args{"code": "import os\n_ = os.write(1, bytes(range(256)))", "session_id": "ID"}},
		{"code with a rich value", "execute_code",
			args{"code": "class R:\n    def _repr_html_(self): return '<b>b</b>'\nR()", "session_id": "ID"}},
		{"command", "execute_command", args{"command": "echo", "args": []string{"a"}, "session_id": "ID"}},
		{"command that fails", "execute_command", args{"command": "printf '\\377'; exit 3", "session_id": "ID"}},
		{"command with much output", "execute_command",
			args{"command": "head -c 300000 /dev/zero | tr '\\0' x", "session_id": "ID"}},
		{"command that is refused a host", "execute_command",
			args{"command": "exec 3<>/dev/tcp/127.7.7.7.example/80", "session_id": "ID"}},
		{"background", "execute_command",
			args{"command": "echo hello; read l; exit 3", "background": true, "session_id": "ID"}},
		{"processes", "list_processes", args{"session_id": "ID"}},
		{"output", "read_process", args{"process_id": "PROCESS", "wait": 5}},
		{"input", "write_process", args{"process_id": "PROCESS", "data": "x\n"}},
		{"output at the end", "read_process", args{"process_id": "PROCESS", "cursor": 6, "wait": 5}},
		{"stop", "stop_process", args{"process_id": "PROCESS"}},
		{"processes that ended", "list_processes", args{"session_id": "ID"}},
		{"write", "sandbox_write_file", args{"path": "a", "content": "abc", "session_id": "ID"}},
		{"read", "sandbox_read_file", args{"path": "a", "session_id": "ID"}},
		{"read a part", "sandbox_read_file", args{"path": "a", "limit": 2, "session_id": "ID"}},
		{"link", "execute_command", args{"command": "ln -s a b; mkdir d", "session_id": "ID"}},
		{"list", "sandbox_list_files", args{"session_id": "ID"}},
		{"expose", "expose_port", args{"port": 8080, "session_id": "ID", "wait": 0}},
		{"sessions", "get_sessions", args{}},
		{"close", "close_port", args{"port": 8080, "session_id": "ID"}},
		{"volumes", "get_volume_path", args{}},
		{"shell", "sandbox_shell_exec", args{"command": "echo a; head -c 300000 /dev/zero"}},
		{"connect", "connect_external_mcp", connect},
		{"install that fails", "auto_install_and_connect_mcp",
			args{"name": "none", "install": args{"type": "git", "spec": "https://127.0.0.1:1/none.git"}}},
		{"servers", "list_external_mcp", args{}},
		{"log", "external_mcp_logs", args{"name": "odd"}},
		{"restart", "restart_external_mcp", args{"name": "odd", "env": args{"A": "b"}}},
		{"disconnect", "disconnect_external_mcp", args{"name": "odd", "delete": true}},
		{"end", "stop_session", args{"session_id": "ID"}},
		{"end of none", "stop_session", args{"session_id": "none"}},
	} {
		for k, v := range call.a {
			switch v {
			case "ID":
				call.a[k] = id
			case "PROCESS":
				call.a[k] = process
			}
		}
		r := s.bare(call.tool, call.a)
		if id == "" {
			id, _ = r.Result["session_id"].(string)
		}
		if p, ok := r.Result["process_id"].(string); ok && process == "" {
			process = p
		}
		said := fmt.Sprint(r.Result["content"])
		if r.Error != nil {
			r.Result, said = map[string]any{"error": r.Error.Data}, r.Error.Message
		}
		if call.name == "install that fails" && !strings.Contains(said, "failed: fatal: unable to access") {
			t.Errorf("the first cause does not stand first: %s", said)
		}
		got[call.name] = shape(r.Result)
	}
	for _, c := range []string{"sessions", "ports"} {
		out, errs, code := s.cli(c, "--json")
		var v any
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Errorf("sandlot %s: %v, %d %s", c, err, code, errs)
		}
		got["sandlot "+c] = shape(v)
	}
	golden.Compare(t, "testdata/results.json", got)
}
