package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/store"
)

// What TestManyPrincipals puts into the store for each principal: with 1 kB for each tool that is 200 kB.
const (
	connectionsEach = 10
	toolsEach       = 20
)

// Bounds of the server's memory in TestManyPrincipals, in bytes: after its start, with slack for other machines (50 MB
// were measured), and what is added for each principal: when all have listed their tools within minutes, so that all is
// in memory, and when they have not used their connections for a while.
const (
	maxStarted = 100 << 20
	maxActive  = 900 << 10
	maxRested  = 100 << 10
)

// restTimeout is how long the test waits for the server's memory to be freed: after the idle timeout that takes until
// the next collection of garbage.
const restTimeout = 4 * time.Minute

// manyTools returns the tools of a connection, with 1 kB each.
func manyTools() (tools []json.RawMessage) {
	for i := range toolsEach {
		tools = append(tools, json.RawMessage(fmt.Sprintf(`{"name":"tool_%d","description":%q,"inputSchema":`+
			`{"type":"object","properties":{"query":{"type":"string","description":%q},"limit":{"type":"integer"}},`+
			`"required":["query"]}}`,
			i, strings.Repeat("Finds what matches. ", 20), strings.Repeat("What to look for. ", 20))))
	}
	return tools
}

// offered returns the catalog of a connection as the server stores it.
func offered(id string) catalog.Catalog {
	r := &catalog.Reader{DescriptionPrefix: "[external:peer]", Trust: "full", ID: id,
		Names: &catalog.Namer{Prefix: "ext_" + id + "_"}, CheckHeaders: func(json.RawMessage) error { return nil },
		Budget: 8 << 20}
	return r.Read(catalog.Offer{Tools: manyTools()})
}

// specOf returns what a principal's connection is: the first one is a remote server, and the others are programs.
func specOf(id string, n int, remote string) spec.Spec {
	if n == 0 {
		return spec.Spec{Name: id, Kind: spec.HTTP, URL: "http://" + remote + "/mcp"}
	}
	return spec.Spec{Name: id, Kind: spec.Stdio, Command: "true"}
}

// fillStore writes the principals and their connections into the store, and returns the principals' tokens.
func fillStore(t *testing.T, folder, remote string, many int) (tokens []string) {
	t.Helper()
	db, err := store.Open(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	put := func(user string, n int) {
		id := fmt.Sprintf("c%05d", n)
		err := db.PutConnection(t.Context(), servers.Record{Owner: "user:" + user, ID: id, Created: time.Now(),
			Spec: specOf(id, n, remote), Catalog: offered(id)})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		user := fmt.Sprintf("user%d", i)
		_, token, err := auth.Issue(t.Context(), db, user, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token.Reveal())
		for n := range connectionsEach {
			put(user, n)
		}
	}
	return tokens
}

// remoteTools is an MCP server that offers manyTools to all, and counts its calls.
func remoteTools(t *testing.T, calls *atomic.Int64) (address string) {
	l := listen(t)
	answers := map[string]any{
		"initialize": map[string]any{"protocolVersion": "2025-06-18", "serverInfo": map[string]string{"name": "many",
			"version": "1"}, "capabilities": map[string]any{"tools": map[string]any{}}},
		"tools/list": map[string]any{"tools": manyTools()},
		"tools/call": map[string]any{"content": []map[string]string{{"type": "text", "text": "found"}}},
		"ping":       map[string]any{},
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage
			Method string
		}
		switch err := json.NewDecoder(r.Body).Decode(&q); {
		case r.Method != http.MethodPost || err != nil:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case q.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		}
		answer := map[string]any{"jsonrpc": "2.0", "id": q.ID}
		if result, ok := answers[q.Method]; ok {
			answer["result"] = result
		} else {
			answer["error"] = map[string]any{"code": -32601, "message": "there is no such method"}
		}
		if q.Method == "tools/call" {
			calls.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})}
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })
	return l.Addr().String()
}

// crowd is many principals of a server.
type crowd struct {
	t      *testing.T
	s      *server
	tokens []string
}

// list lists the tools of a principal.
func (c *crowd) list(token string) {
	status, _, text := c.s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, credentials(token)...)
	if n := strings.Count(text, `"name":"ext_c`); status != http.StatusOK || n != connectionsEach*toolsEach {
		c.t.Errorf("%d with %d tools: %.300s", status, n, text)
	}
}

// call calls a tool of a principal's remote server.
func (c *crowd) call(token string) {
	status, _, text := c.s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+
		`"ext_c00000_tool_7","arguments":{"query":"x"}}}`, credentials(token)...)
	if status != http.StatusOK || !strings.Contains(text, "found") {
		c.t.Errorf("%d: %.300s", status, text)
	}
}

// ownCall calls a tool of Sandlot's own.
func (c *crowd) ownCall(token string) {
	status, _, text := c.s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+
		`"get_sessions","arguments":{}}}`, credentials(token)...)
	if status != http.StatusOK || !strings.Contains(text, "sessions") {
		c.t.Errorf("%d: %.300s", status, text)
	}
}

// each does something as each principal, some at once.
func (c *crowd) each(do func(token string)) {
	var all sync.WaitGroup
	const atOnce = 4
	for worker := range atOnce {
		all.Go(func() {
			for i := worker; i < len(c.tokens) && !c.t.Failed(); i += atOnce {
				do(c.tokens[i])
			}
		})
	}
	all.Wait()
}

// took returns how long something takes for the first principal: the median of many times, after as many that do not
// count.
func (c *crowd) took(do func(token string)) time.Duration {
	const count = 1000
	var times []time.Duration
	for range count {
		do(c.tokens[0])
	}
	for range count {
		began := time.Now()
		do(c.tokens[0])
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// TestManyPrincipals: a server whose store has many principals with 10 connections of 20 tools each starts, and has
// little memory: what a principal's connections offer is read with the principal's first request. When all of them are
// active at once, it has a few times what they offer; when they have used nothing for as long as the setting
// mcp_idle_timeout says, it has little again, and all comes again when it is used. The test prints how long the start
// takes, and how long calls take when one principal is active and when all are.
func TestManyPrincipals(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	s, remote, many := prepare(t), remoteTools(t, &calls), numberOf(t, "SANDLOT_PRINCIPALS", 150)
	c := &crowd{t, s, fillStore(t, s.State, remote, many)}
	config := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, config, fmt.Sprintf("network: {allow_private: [{host: \"127.0.0.1:%s\", cidr: 127.0.0.0/8}]}\n",
		strings.Split(remote, ":")[1]))
	began := time.Now()
	s.begin([]string{"SANDLOT_AUTH=required", "SANDLOT_CONFIG=" + config,
		"SANDLOT_MCP_IDLE_TIMEOUT=20s", "SANDLOT_TOOLS=all"})
	ready := time.Since(began)
	c.memory(fmt.Sprintf("when it was ready, after %v,", ready.Round(time.Millisecond)), maxStarted)

	c.list(c.tokens[0])
	c.call(c.tokens[0])
	ownAlone, alone := c.took(c.ownCall), c.took(c.call)
	began = time.Now()
	c.each(c.list)
	c.each(c.call)
	c.memory(fmt.Sprintf("after a list of %d tools and a call of each of %d principals, in %v,",
		connectionsEach*toolsEach, len(c.tokens), time.Since(began).Round(time.Millisecond)),
		int64(maxStarted+many*maxActive))
	own, other := c.took(c.ownCall), c.took(c.call)
	t.Logf("a call of Sandlot's own tools took %v, and with all principals active %v (%.2f times); a call of a "+
		"third-party tool %v, and %v (%.2f times)", ownAlone, own, float64(own)/float64(ownAlone), alone, other,
		float64(other)/float64(alone))

	began = time.Now()
	rested := int64(maxStarted + many*maxRested)
	for memory(t, s.cmd.Process.Pid) > rested && time.Since(began) < restTimeout {
		for range 200 { // where nothing allocates, garbage is collected every two minutes
			c.ownCall(c.tokens[0])
		}
		time.Sleep(time.Second)
	}
	c.memory(fmt.Sprintf("%v later", time.Since(began).Round(time.Second)), rested)
	before := calls.Load()
	for _, token := range c.tokens[:20] {
		c.list(token)
		c.call(token)
	}
	if calls.Load() != before+20 {
		t.Errorf("%d calls arrived", calls.Load()-before)
	}
}

// memory prints how much memory the server has, and fails if that is more than a bound.
func (c *crowd) memory(when string, most int64) {
	c.t.Helper()
	used := memory(c.t, c.s.cmd.Process.Pid)
	c.t.Logf("%s the server had %d MB", when, used>>20)
	if used > most {
		c.t.Errorf("%s the server had more than %d MB", when, most>>20)
	}
}
