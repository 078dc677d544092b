package test

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hostileCells are hostile or careless cells, each after a line that begins with ####. %d is a small random number.
//
//go:embed testdata/hostile_cells.txt
var hostileCells string

// What a result says of an interpreter that was started again, with the reason.
var startedAgain = regexp.MustCompile(`(?s)interpreter was restarted \(.+\)|interpreter .*(?:exited|was killed|was ended|ended)|sandbox had to end: .+`)

// What a result says where processes of the cell keep the processors from the agent for as long as a link may be silent.
const linkBroke = "the link to the sandbox broke in the middle of the call; the session lives on"

// The answer of print(1), within the lines of a thread or process that prints for ever.
var answer = regexp.MustCompile(`^(?:t|y|child)*1(?:t|y|child)*$`)

// Lines of a thread or process that prints for ever.
var prints = regexp.MustCompile(`(?m)^(?:t|y|child)+$`)

// After each of many hostile or careless cells the next cell answers, or says that the interpreter was started again, and
// why. SANDLOT_HOSTILE_CELLS is how many cells, SANDLOT_SEED makes the same again.
func TestHostileCells(t *testing.T) {
	t.Parallel()
	count, seed := numberOf(t, "SANDLOT_HOSTILE_CELLS", 30), uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SANDLOT_SEED"), 10, 64); err == nil {
		seed = n
	}
	random := rand.New(rand.NewPCG(seed, 0))
	c := start(t).connect(older, "", nil)
	id := c.code("new", "1").session()
	proven(t, c, id)
	fail := func(code string, what string, r *result) {
		t.Errorf("SANDLOT_SEED=%d: after\n%s\n%s: %.1500s", seed, code, what, r.All)
	}
	run := func(code string, seconds int) *result {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := c.try(ctx, "execute_code", args{"code": code, "session_id": id, "timeout": seconds})
		if err != nil {
			return &result{CallToolResult: &mcp.CallToolResult{IsError: true}, All: "fault: " + err.Error()}
		}
		return r
	}
	cells := regexp.MustCompile(`(?m)\n?^####.*\n`).Split(strings.TrimSuffix(hostileCells, "\n"), -1)[1:]
	order := random.Perm(len(cells))
	for n := range count {
		code := cells[order[n%len(order)]]
		if strings.Contains(code, "%d") {
			code = fmt.Sprintf(code, 1+random.IntN(9))
		}
		if n >= len(order) { // two at once
			other := cells[random.IntN(len(cells))]
			if strings.Contains(other, "%d") {
				other = fmt.Sprintf(other, 1+random.IntN(9))
			}
			code = "try:\n    " + strings.ReplaceAll(code, "\n", "\n    ") + "\nexcept BaseException: pass\n" + other
		}
		began := time.Now()
		r := run(code, 2)
		after := run("print(1)", 20)
		lost := startedAgain.MatchString(r.All + after.All)
		if took := time.Since(began); took > 20*time.Second {
			t.Logf("%v for\n%s", took, code)
		}
		if strings.HasPrefix(r.All, "fault: ") && !lost && !strings.Contains(r.All, linkBroke) {
			fail(code, "its result is a", r)
		}
		lines := strings.Split(after.Text, "\n")
		one := false
		for _, line := range lines {
			one = one || answer.MatchString(strings.TrimSpace(line))
		}
		if !one && (after.Fields["truncated"] == true || prints.MatchString(after.Text)) { // its line is in the gap, as another thread or process prints for ever
			one = run("2 - 1", 20).Fields["result"] == "1"
		}
		switch {
		case one || lost:
		case strings.Contains(after.Text, "print is ") || strings.Contains(after.Text, "sys.stdout is "): // said
		default:
			fail(code, "the next cell says", after)
		}
		if n%8 == 7 || after.IsError || !one { // what was replaced on purpose stays: begin anew
			c.call("stop_session", args{"session_id": id})
			id = fresh(t, c)
		}
	}
}

// fresh begins a session. The machine may be slow just now: it still ends the thousands of processes of the last one.
func fresh(t *testing.T, c *client) string {
	t.Helper()
	for range 2 {
		r, err := c.try(t.Context(), "execute_code", args{"code": "1", "session_id": "new"})
		if err == nil {
			return r.session()
		}
		t.Logf("a new session: %v", err)
		if !strings.Contains(err.Error(), "did not start in time") {
			break
		}
	}
	return c.code("new", "1").session()
}
