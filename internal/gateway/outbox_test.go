package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/tool"
)

func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outbox
		var sent []string
		block := make(chan struct{})
		say := func(log bool, key, text string) {
			o.put(notice{log: log, key: key, send: func() { <-block; sent = append(sent, text) }})
		}
		say(false, "", "first")
		synctest.Wait() // it is being sent
		say(false, "", "progress")
		say(true, "", "oldest log")
		say(false, "u", "update")
		say(false, "u", "the same update")
		for i := range maxUnsent - 2 {
			say(true, "", fmt.Sprint("log ", i))
		}
		began := time.Now()
		o.flush(t.Context(), 2*time.Second)
		if time.Since(began) != 2*time.Second {
			t.Errorf("flush took %v of a client that does not read", time.Since(began))
		}
		close(block)
		o.flush(t.Context(), 2*time.Second)
		if len(sent) != maxUnsent+1 || slices.Contains(sent, "oldest log") || slices.Contains(sent, "the same update") ||
			!slices.Equal(sent[:3], []string{"first", "progress", "update"}) {
			t.Errorf("sent %q", sent)
		}
		if o.sending() {
			t.Error("it still sends")
		}
		o.end()
		say(false, "", "late")
		synctest.Wait()
		if slices.Contains(sent, "late") {
			t.Error("something was sent after the end")
		}
	})
}

// What is said of a call comes before its result, in order.
func TestProgressComesBeforeTheResult(t *testing.T) {
	const said = 40
	g := over(&theirs{tools: []tool.Tool{foreignTool("ext_t", `{"type":"object"}`)}, call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
		for i := range said {
			c.Client.Tell("notifications/progress", json.RawMessage(fmt.Sprintf(`{"progress":%d,"message":"p%d."}`, i, i)))
		}
		return &tool.Result{Raw: json.RawMessage(`{"content":[{"type":"text","text":"result"}]}`)}, nil
	}})
	id := begin(t, g, local)
	w := post(g, local, id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ext_t","arguments":{},"_meta":{"progressToken":"x"}}}`)
	at := 0
	for i := range said + 1 {
		word := fmt.Sprintf(`"p%d."`, i)
		if i == said {
			word = `"result"`
		}
		n := strings.Index(w.Body.String()[at:], word)
		if n < 0 {
			t.Fatalf("no %s after byte %d of %s", word, at, w.Body)
		}
		at += n
	}
}

// What waits for a client is bounded in bytes too.
func TestOutboxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outbox
		block, sent := make(chan struct{}), 0
		for range 10 {
			o.put(notice{size: maxUnsentBytes / 2, send: func() { <-block; sent++ }})
			synctest.Wait()
		}
		close(block)
		if o.flush(t.Context(), time.Minute); sent != 3 || o.bytes != 0 { // the first was on its way
			t.Errorf("%d were sent, %d bytes are left", sent, o.bytes)
		}
	})
}
