package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTokenScopes: tokens of one user with different scopes, at the same time, by both protocols, bare calls,
// the API and `sandlot stdio`: neither can do the other's. Each list of tools has what the token may use, and
// `token list` tells of it, and of the last use, after a restart too.
func TestTokenScopes(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_AUTH=required")
	for scope, near := range map[string]string{"code.run": "code.execute", "files.*": "file.*", "": "empty"} {
		if _, errs, code := s.cli("token", "create", "--user", "ann", "--scope", scope); code != 2 ||
			!strings.Contains(errs, near) {
			t.Errorf("--scope %q: %d %s", scope, code, errs)
		}
	}
	if list, _, _ := s.cli("token", "list"); list != "" {
		t.Errorf("tokens were made: %s", list)
	}
	code := s.token("ann", "--scope", "code.execute")
	files := s.token("ann", "--scope", "file.*", "--scope", "session.list")
	whole := s.token("ann")
	s.connect(newer, whole, nil).call("sandbox_write_file", args{"path": "x", "content": "1", "session_id": "home"})
	uses := []struct {
		tool, operation string
		a               args
	}{
		{"execute_code", "code.execute", args{"code": "1", "session_id": "home"}},
		{"sandbox_read_file", "file.read", args{"path": "x", "session_id": "home"}},
		{"execute_command", "shell.execute", args{"command": "true", "session_id": "home"}},
		{"get_sessions", "session.list", args{}},
		{"stop_session", "session.stop", args{"session_id": "none"}},
	}
	may := map[string][]string{code: {"code.execute"}, files: {"file.read", "session.list"},
		whole: {"code.execute", "file.read", "shell.execute", "session.list", "session.stop"}}
	var all sync.WaitGroup
	for token, operations := range may {
		for _, version := range []string{older, newer} {
			all.Go(func() {
				c := s.connect(version, token, nil)
				names := c.toolNames()
				for _, u := range uses {
					allowed := slices.Contains(operations, u.operation)
					if (names[u.tool] != nil) != allowed {
						t.Errorf("%v, %s: %s is in the list: %v", operations, version, u.tool, !allowed)
					}
					for range 3 {
						_, err := c.try(t.Context(), u.tool, u.a)
						if allowed && err != nil {
							t.Errorf("%v, %s: %s: %v", operations, version, u.tool, err)
						} else if !allowed {
							wantFault(t, err, -32600, "FORBIDDEN", u.operation)
						}
					}
				}
			})
		}
		all.Go(func() {
			for _, u := range uses {
				s.oneScopedCall(t, token, u.tool, u.operation, u.a, slices.Contains(operations, u.operation))
			}
		})
	}
	all.Wait()
	s.stop()
	s.launch()
	list, _, _ := s.cli("token", "list")
	for line := range strings.Lines(list) {
		if strings.Contains(line, "last used never") || !strings.Contains(line, "last used 20") {
			t.Errorf("the list after a restart: %s", line)
		}
	}
	if !strings.Contains(list, "scope code.execute\n") || !strings.Contains(list, "scope file.* session.list\n") {
		t.Errorf("the list: %s", list)
	}
	// A new session needs its own operation, whoever asks for one.
	_, err := s.connect(newer, code, nil).try(t.Context(), "execute_code", args{"code": "1", "session_id": "new"})
	wantFault(t, err, -32600, "FORBIDDEN", "session.create")
	s.connect(newer, s.token("ann", "--scope", "code.execute,session.create"), nil).code("new", "1")
	_, err = s.connect(newer, code, nil).try(t.Context(), "sandbox_read_file", uses[1].a)
	wantFault(t, err, -32600, "FORBIDDEN", "file.read")
}

// oneScopedCall makes a call as a bare call, over the API and by `sandlot stdio`.
func (s *server) oneScopedCall(t *testing.T, token, tool, operation string, a args, allowed bool) {
	given, _ := json.Marshal(a)
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool,
		given)
	_, _, text := s.post("/mcp", call, credentials(token)...)
	if strings.Contains(text, `"result"`) != allowed || !allowed && !strings.Contains(text, operation) {
		t.Errorf("a bare call of %s: %s", tool, text)
	}
	status, header, text := s.post("/v1/tools/"+tool, string(given), credentials(token)...)
	challenge := header.Get("WWW-Authenticate")
	if allowed != (status == 200) || !allowed && (status != 403 || !strings.Contains(challenge,
		`error="insufficient_scope", scope="`+operation+`"`)) {
		t.Errorf("%s by the API: %d %q %s", tool, status, challenge, text)
	}
	answer := s.overStdio(t, token, strings.Replace(call, `"id":1`, `"id":77`, 1))
	if refused := strings.Contains(answer, "not in the scope"); refused == allowed || refused &&
		(!strings.Contains(answer, operation) || !strings.Contains(answer, `"isError":true`)) {
		t.Errorf("%s by stdio: %s", tool, answer)
	}
}

// overStdio sends a request with the id 77 to `sandlot stdio`, and returns the answer.
func (s *server) overStdio(t *testing.T, token, request string) (answer string) {
	cmd := exec.CommandContext(t.Context(), s.program, "--server", s.URL, "stdio")
	cmd.Env = append(slices.Clone(s.env), "SANDLOT_TOKEN="+token)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { in.Close(); cmd.Wait() }()
	fmt.Fprintln(in, hello+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+request)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"id":77`) {
			return lines.Text()
		}
	}
	return "it ended"
}

// somebody is a user with a home, a secret, a file, a process and a connection.
type somebody struct{ credentials, name, session, process, connection, tool string }

// TestServicesUsers: a service with two users, another service with users of the same names, and a user with a
// token: nobody sees the others' sessions, files, processes, servers, secrets or events, before and after
// a crash of the server.
func TestServicesUsers(t *testing.T) {
	t.Parallel()
	// The users of a service connect servers as other users do; the service itself needs the rule.
	s := startConfigured(t, "auth: required\npolicy: {rules: [allow gitu mcp.connect]}\n")
	gitu, rival := s.token("gitu", "--service", "--acts-for"), s.token("rival", "--service", "--acts-for")
	everybody := map[string]*somebody{}
	for name, c := range map[string]string{"user:gitu/ann": actingAs(gitu, "ann"),
		"user:gitu/bob":  actingAs(gitu, "bob"),
		"user:rival/ann": actingAs(rival, "ann"), "user:ann": s.token("ann"), "user:gitu": gitu} {
		everybody[name] = &somebody{credentials: c, name: name}
	}
	for _, who := range everybody {
		s.furnish(t, who)
	}
	s.nobodySeesOthers(t, everybody)
	s.kill()
	s.launch()
	s.nobodySeesOthers(t, everybody)

	// A token that was revoked ends what it holds for the users that it named.
	if code, _, text := s.post("/v1/tools/execute_command",
		`{"command":"python3 -m http.server --bind 127.0.0.1 8000","background":true,"session_id":"home"}`,
		credentials(actingAs(rival, "ann"))...); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	time.Sleep(time.Second) // until it listens
	held := s.lasting(t, actingAs(rival, "ann"))
	list, _, _ := s.cli("token", "list")
	for line := range strings.Lines(list) {
		if strings.Contains(line, "rival") {
			s.cli("token", "revoke", strings.Fields(line)[0])
		}
	}
	ends(t, held, 5*time.Second)
	for _, header := range [][]string{credentials(rival), credentials(actingAs(rival, "ann"))} {
		if code, _, _ := s.request("GET", "/v1/sessions", nil, header...); code != 401 {
			t.Errorf("the revoked token: %d", code)
		}
	}
	// A user of a service is a person, who has a home; without a name the service itself acts.
	for header, service := range map[string]bool{gitu: true, actingAs(gitu, "ann"): false} {
		status, _, text := s.post("/v1/tools/execute_code", `{"code":"1"}`, credentials(header)...)
		if status != 200 || strings.Contains(text, `"session_created":true`) != service {
			t.Errorf("a call without a session of the service itself (%v): %d %s", service, status, text)
		}
	}
	// The commands of the client act for the user in SANDLOT_USER.
	s.env = append(s.env, "SANDLOT_USER=bob")
	if out, code := s.cliAs(gitu, "", "--server", s.URL, "secret", "list"); code != 0 ||
		!strings.Contains(out, "of_gitu_bob") {
		t.Errorf("secret list: %d %s", code, out)
	}
	if out, code := s.cliAs(everybody["user:ann"].credentials, "", "--server", s.URL, "secret", "list"); code == 0 ||
		!strings.Contains(out, "Sandlot-User") {
		t.Errorf("a user acts for another: %d %s", code, out)
	}
	s.env = s.env[:len(s.env)-1]
}

// markOf is a word for what somebody has.
func markOf(name string) string { return strings.NewReplacer("user:", "of_", "/", "_").Replace(name) }

// furnish gives somebody one of everything.
func (s *server) furnish(t *testing.T, who *somebody) {
	t.Helper()
	header := credentials(who.credentials)
	mark := markOf(who.name)
	s.put(who.credentials, "odd.py")
	c := s.connect(newer, who.credentials, nil)
	who.session = c.code("home", "x = '"+who.name+"'").session()
	c.call("sandbox_write_file", args{"path": "mine", "content": who.name, "session_id": "home"})
	who.process, _ = c.call("execute_command", args{"command": "echo " + mark + "; sleep 1000", "background": true,
		"session_id": "home"}).Fields["process_id"].(string)
	if code, _, text := s.request("PUT", "/v1/secrets/"+mark, strings.NewReader("value "+mark),
		header...); code != 200 {
		t.Fatalf("%s: %d %s", who.name, code, text)
	}
	r := c.odd(mark, "plain", args{"env": args{"ODD_KEY": "${secret:" + mark + "}"}})
	who.connection, _ = r.Fields["connectionId"].(string)
	who.tool = r.exposed(t, "env")
}

// nobodySeesOthers has each try everything with the handles of all others.
func (s *server) nobodySeesOthers(t *testing.T, everybody map[string]*somebody) {
	t.Helper()
	var all sync.WaitGroup
	for _, who := range everybody {
		all.Go(func() {
			c := s.connect(older, who.credentials, nil)
			s.seesOwn(t, c, who)
			for _, other := range everybody {
				if other != who {
					s.triesOthers(t, c, who, other)
				}
			}
		})
	}
	all.Wait()
}

// seesOwn checks that somebody has what is theirs, and that no list has anything of others.
func (s *server) seesOwn(t *testing.T, c *client, who *somebody) {
	mark := markOf(who.name)
	if r := c.call("sandbox_read_file", args{"path": "mine", "session_id": who.session}); !strings.Contains(r.All,
		who.name) {
		t.Errorf("%s reads %q", who.name, r.All)
	}
	if r := c.call(who.tool, nil); !strings.Contains(r.All, "value "+mark) {
		t.Errorf("the server of %s has %q", who.name, r.All)
	}
	for path, own := range map[string]string{"/v1/sessions": who.session, "/v1/connections": who.connection,
		"/v1/secrets": mark, "/v1/events?follow=false": `"` + who.name + `"`} {
		code, _, text := s.request("GET", path, nil, credentials(who.credentials)...)
		if code != 200 || !strings.Contains(text, own) {
			t.Errorf("%s, %s: %d without %s: %s", who.name, path, code, own, text)
		}
		for name := range strings.SplitSeq("user:gitu/ann user:gitu/bob user:rival/ann user:ann user:gitu", " ") {
			// Events of a service's users name the service, which acted for them.
			others := strings.ReplaceAll(text, `"service":"`+name+`"`, "")
			if name != who.name && strings.Contains(others, `"`+name+`"`) {
				t.Errorf("%s, %s has something of %s: %s", who.name, path, name, text)
			}
		}
	}
}

// triesOthers has somebody try everything with the handles of another.
func (s *server) triesOthers(t *testing.T, c *client, who, other *somebody) {
	for tool, a := range map[string]args{
		"execute_code":       {"code": "x", "session_id": other.session},
		"execute_command":    {"command": "cat mine", "session_id": other.session},
		"sandbox_read_file":  {"path": "mine", "session_id": other.session},
		"sandbox_write_file": {"path": "mine", "content": "x", "session_id": other.session},
		"sandbox_list_files": {"session_id": other.session}, "list_processes": {"session_id": other.session},
		"get_sessions": {"session_id": other.session},
	} {
		_, err := c.try(t.Context(), tool, a)
		wantFault(t, err, -32602, "SESSION_NOT_FOUND")
	}
	for tool, a := range map[string]args{
		"read_process": {"process_id": other.process}, "stop_process": {"process_id": other.process},
		"external_mcp_logs":    {"connectionId": other.connection},
		"restart_external_mcp": {"connectionId": other.connection}, other.tool: nil,
		"disconnect_external_mcp": {"connectionId": other.connection, "delete": true},
	} {
		if r, err := c.try(t.Context(), tool, a); err == nil {
			t.Errorf("%s does %s with what is %s's: %q", who.name, tool, other.name, r.All)
		}
	}
	mark := markOf(other.name)
	for _, path := range []string{"GET /v1/sessions/" + other.session, "DELETE /v1/secrets/" + mark,
		"GET /v1/sessions/" + other.session + "/files/workspace/mine", "GET /v1/connections/" + other.connection,
		"GET /v1/sessions/" + other.session + "/network", "DELETE /v1/sessions/" + other.session,
		"POST /v1/sessions/" + other.session + "/ports/8000"} {
		method, path, _ := strings.Cut(path, " ")
		header := append(credentials(who.credentials), "Upgrade", "sandlot-dial", "Connection", "Upgrade")
		if code, _, text := s.request(method, path, nil, header...); code != 404 {
			t.Errorf("%s: %s %s of %s: %d %s", who.name, method, path, other.name, code, text)
		}
	}
	events := "/v1/events?follow=false&session=" + other.session
	if _, _, text := s.request("GET", events, nil, credentials(who.credentials)...); strings.Contains(text,
		`"principal":"`+other.name+`"`) {
		t.Errorf("%s reads the events of %s: %s", who.name, other.name, text)
	}
}
