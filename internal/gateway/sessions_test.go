package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
)

// A session's subscriptions end with it, and not with another session.
func TestLeft(t *testing.T) {
	external := &fakeExternal{resources: []tool.Item{{Key: "a://b", Raw: []byte(`{"uri":"a://b","name":"b"}`)}},
		gone: make(chan string, 10)}
	g := newGateway(external)
	e, _ := g.acquire(endpointKey{principal: auth.Local})
	connect := func() (*mcp.ClientSession, *mcp.ServerSession) {
		here, there := mcp.NewInMemoryTransports()
		s, err := e.server.Connect(t.Context(), there, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).
			Connect(t.Context(), here, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatal(err)
		}
		return c, s
	}
	one, ofOne := connect()
	two, ofTwo := connect()
	if clientID(ofOne) == clientID(ofTwo) {
		t.Fatal("two sessions are one client")
	}
	for range 2 { // a repeated subscription changes nothing
		if err := one.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "a://b"}); err != nil {
			t.Fatal(err)
		}
	}
	//lint:ignore SA1019 clients of the stateful protocol set the level
	if err := two.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		t.Fatal(err)
	}
	next := func() string {
		select {
		case who := <-external.gone:
			return who
		case <-time.After(200 * time.Millisecond):
			return ""
		}
	}
	if who := next(); who != "" {
		t.Fatalf("%s left, and did not", who)
	}
	one.Close()
	if who := next(); who != clientID(ofOne) {
		t.Errorf("%q left, not %q", who, clientID(ofOne))
	}
	two.Close()
	if who := next(); who != clientID(ofTwo) {
		t.Errorf("%q left, not %q", who, clientID(ofTwo))
	}
	if who := next(); who != "" {
		t.Errorf("%q left again", who)
	}
}

// A new feature is in the next list, before clients are notified of it.
func TestListIsFresh(t *testing.T) {
	external := &fakeExternal{}
	g := newGateway(fakeBuiltin{}, external)
	_ = ask(g, "tools/list", "", "") // as it was
	external.tools = []tool.Tool{externalTool("ext_new", `{"type":"object"}`)}
	if got := ask(g, "tools/list", "", ""); !strings.Contains(got, `"ext_new"`) || !strings.Contains(got, `"own"`) {
		t.Errorf("listed %s", got)
	}
}
