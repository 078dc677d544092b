package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/test/tokens"
)

// tracker is an MCP server with 200 issues in pages, and a tool that writes a table.
type tracker struct {
	mu    sync.Mutex
	table string // what was written last
}

// trackerLabels are the labels of an issue by its number.
func trackerLabels(number int) []string {
	all := []string{"bug", "docs", "speed", "question", "security"}
	labels := []string{all[number%len(all)]}
	if number%3 == 0 {
		labels = append(labels, all[(number/3)%len(all)])
	}
	slices.Sort(labels)
	return slices.Compact(labels)
}

func (k *tracker) list(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var in struct{ Page int }
	if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
		return nil, err
	}
	const each, pages = 20, 10
	var issues []any
	for n := (in.Page-1)*each + 1; n <= in.Page*each; n++ {
		title := fmt.Sprintf("Issue %d stops the work of a user", n)
		issues = append(issues, map[string]any{"number": n, "title": title, "labels": trackerLabels(n),
			"author": "somebody", "state": "open",
			"body": strings.Repeat("It happened again this morning, and nothing in the log says why. ", 6)})
	}
	answer := map[string]any{"issues": issues}
	if in.Page < pages {
		answer["next"] = in.Page + 1
	}
	text, err := json.Marshal(answer)
	return &mcp.CallToolResult{StructuredContent: answer, Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}},
		err
}

func (k *tracker) write(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table = string(r.Params.Arguments)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "The table was written."}}}, nil
}

// written returns the table, and forgets it.
func (k *tracker) written(t *testing.T) string {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	var table any
	if err := json.Unmarshal([]byte(k.table), &table); err != nil {
		t.Fatalf("no table was written: %q", k.table)
	}
	k.table = ""
	return fmt.Sprint(table)
}

// start starts the server, and returns its address.
func (k *tracker) start(t *testing.T) string {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "tracker", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "list_issues", Description: "Lists the issues, 20 on a page.",
		InputSchema: map[string]any{"type": "object", "required": []string{"page"},
			"properties": map[string]any{"page": map[string]any{"type": "integer", "minimum": 1}}}}, k.list)
	server.AddTool(&mcp.Tool{Name: "write_table", Description: "Writes a table into the report.",
		InputSchema: map[string]any{"type": "object", "required": []string{"title", "rows"},
			"properties": map[string]any{"title": map[string]any{"type": "string"},
				"rows": map[string]any{"type": "array", "items": map[string]any{"type": "array"}}}}}, k.write)
	l := listen(t)
	web := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)}
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })
	return l.Addr().String()
}

// spending counts the tokens that pass a client.
type spending struct {
	*client
	tokens int
}

func (s *spending) add(v any) {
	s.t.Helper()
	s.tokens += tokens.CountJSON(v)
}

func (s *spending) list() {
	s.t.Helper()
	for d, err := range s.Tools(s.t.Context(), nil) {
		if err != nil {
			s.t.Fatal(err)
		}
		s.add(d)
	}
}

func (s *spending) call(tool string, a args) *result {
	s.t.Helper()
	s.add(args{"name": tool, "arguments": a})
	r := s.client.call(tool, a)
	if r.IsError {
		s.t.Fatalf("%s: %s", tool, r.All)
	}
	s.add(r.CallToolResult)
	return r
}

// taskCode does the task in the sandbox.
const taskCode = `from collections import Counter
from mcp_tools import tracker
count, page = Counter(), 1
while page:
    answer = tracker.list_issues(page=page)
    count.update(label for issue in answer["issues"] for label in issue["labels"])
    page = answer.get("next")
print(tracker.write_table(title="Issues by label", rows=[[label, n] for label, n in sorted(count.items())]))
print(count.most_common(1))`

// TestTaskInCode: "read 200 issues by one tool, count them by label, write a table by another" writes the same table
// whether an agent calls the tools or its code does. From code a small part of the tokens passes the client.
func TestTaskInCode(t *testing.T) {
	t.Parallel()
	k := &tracker{}
	s := startConfigured(t, fmt.Sprintf("mcp:\n  tracker: {url: \"http://%s/mcp\"}\n", k.start(t)))
	byAgent := &spending{client: s.connectAt("/mcp?tools=all", older, "", false, nil)}
	byAgent.list()
	count := map[string]int{}
	for page := 1; page != 0; {
		r := byAgent.call("ext_tracker_list_issues", args{"page": page})
		issues, _ := r.Fields["issues"].([]any)
		for _, issue := range issues {
			labels, _ := issue.(map[string]any)["labels"].([]any)
			for _, label := range labels {
				count[label.(string)]++
			}
		}
		next, _ := r.Fields["next"].(float64)
		page = int(next)
	}
	var rows [][]any
	for label, n := range count {
		rows = append(rows, []any{label, n})
	}
	slices.SortFunc(rows, func(a, b []any) int { return strings.Compare(a[0].(string), b[0].(string)) })
	byAgent.call("ext_tracker_write_table", args{"title": "Issues by label", "rows": rows})
	want := k.written(t)

	byCode := &spending{client: s.connectAt("/mcp?tools=code", older, "", false, nil)}
	byCode.list()
	r := byCode.call("execute_code", args{"code": taskCode})
	if got := k.written(t); got != want {
		t.Errorf("the code wrote %s, and the agent %s", got, want)
	}
	if !strings.Contains(r.Text, "The table was written.") {
		t.Errorf("the code printed %q", r.All)
	}
	t.Logf("%d tokens pass the client of an agent that calls the tools, and %d that of one whose code does",
		byAgent.tokens, byCode.tokens)
	if byCode.tokens > byAgent.tokens/5 {
		t.Errorf("%d tokens passed the client with code, and %d without", byCode.tokens, byAgent.tokens)
	}
}
