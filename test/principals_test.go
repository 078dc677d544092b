package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/store"
)

// What TestManyPrincipals puts into the store: with 1 kB for each tool that is 200 MB.
const (
	manyPrincipals  = 1000
	connectionsEach = 10
	toolsEach       = 20
)

// Bounds of the server's memory in TestManyPrincipals, in bytes: after its start, with slack for other machines (50 MB
// were measured), and when all principals have listed their tools within minutes, so that all is in memory.
const (
	maxStarted = 200 << 20
	maxActive  = 1000 << 20
)

// offered returns the catalog of a connection as the server stores it, of tools with 1 kB each.
func offered(id string) catalog.Catalog {
	var tools []json.RawMessage
	for i := range toolsEach {
		tools = append(tools, json.RawMessage(fmt.Sprintf(`{"name":"tool_%d","description":%q,"inputSchema":`+
			`{"type":"object","properties":{"query":{"type":"string","description":%q},"limit":{"type":"integer"}},`+
			`"required":["query"]}}`,
			i, strings.Repeat("Finds what matches. ", 20), strings.Repeat("What to look for. ", 20))))
	}
	r := &catalog.Reader{DescriptionPrefix: "[external:peer]", Trust: "full", ID: id,
		Names: &catalog.Namer{Prefix: "ext_" + id + "_"}, CheckHeaders: func(json.RawMessage) error { return nil },
		Budget: 8 << 20}
	return r.Read(catalog.Offer{Tools: tools})
}

// fillStore writes the principals and their connections into the store, and returns the principals' tokens.
func fillStore(t *testing.T, folder string) (tokens []string) {
	t.Helper()
	db, err := store.Open(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	put := func(user string, n int) {
		id := fmt.Sprintf("c%05d", n)
		err := db.PutConnection(t.Context(), servers.Record{Owner: "user:" + user, ID: id, Created: time.Now(),
			Spec: spec.Spec{Name: id, Kind: spec.Stdio, Command: "true"}, Catalog: offered(id)})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range manyPrincipals {
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

// TestManyPrincipals: a server whose store has 1,000 principals with 10 connections of 20 tools each starts, and has
// little memory: what a principal's connections offer is read with the principal's first request. When all of them are
// active at once, it has a few times what they offer. The test prints how long the start takes.
func TestManyPrincipals(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	tokens := fillStore(t, s.State)
	began := time.Now()
	s.begin([]string{"SANDLOT_POOL_SIZE=0", "SANDLOT_AUTH=required"})
	took := time.Since(began)
	started := memory(t, s.cmd.Process.Pid)
	t.Logf("the server was ready after %v, and had %d MB", took.Round(time.Millisecond), started>>20)
	if started > maxStarted {
		t.Errorf("the server has %d MB after its start", started>>20)
	}
	list := func(token string) {
		status, _, text := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, credentials(token)...)
		if n := strings.Count(text, `"name":"ext_c`); status != http.StatusOK || n != connectionsEach*toolsEach {
			t.Errorf("%d with %d tools: %.300s", status, n, text)
		}
	}
	began = time.Now()
	var all sync.WaitGroup
	const atOnce = 4
	for worker := range atOnce {
		all.Go(func() {
			for i := worker; i < len(tokens) && !t.Failed(); i += atOnce {
				list(tokens[i])
			}
		})
	}
	all.Wait()
	used := memory(t, s.cmd.Process.Pid)
	t.Logf("%d lists of %d tools took %v; then the server had %d MB", len(tokens), connectionsEach*toolsEach,
		time.Since(began).Round(time.Millisecond), used>>20)
	if used > maxActive {
		t.Errorf("the server has %d MB after a list of each principal", used>>20)
	}
}
