package main

import (
	"context"
	"fmt"
	"strings"
)

// A step is one call of the agent. The home session takes it, unless the step goes to a copy.
type step struct {
	tool   string
	code   []string       // of a cell
	args   map[string]any // of another tool
	shown  string         // the arguments, as the picture has them
	inCopy bool
}

var steps = []step{
	{tool: "execute_code", code: []string{
		"import os",
		"orders = [120, 80, 200]",
		"os.uname().release, sum(orders)            # a kernel of its own, and not the machine's",
	}},
	{tool: "auto_install_and_connect_mcp", shown: "clock, from pip: mcp-server-time", args: map[string]any{
		"name": "clock", "install": map[string]any{"type": "pip", "spec": "mcp-server-time"}}},
	{tool: "execute_code", code: []string{
		"from mcp_tools import clock                # the server's tools, as functions",
		`t = clock.convert_time(source_timezone="UTC", time="12:00",`,
		`                       target_timezone="Asia/Tokyo")`,
		`t["time_difference"], max(orders)          # variables stay between calls`,
	}},
	{tool: "fork_session", shown: "count: 2", args: map[string]any{"count": 2, "session_id": "home"}},
	{tool: "execute_code", inCopy: true, code: []string{
		"orders.append(100)                         # a live copy: it has the variables too",
		"sum(orders)",
	}},
	{tool: "execute_code", code: []string{
		"sum(orders)                                # and the original goes on, unchanged",
	}},
}

// listing is the user's command. It leaves out when each session was used, and of which it is a copy.
const listing = "sandlot sessions | cut -c1-60"

// tell makes all calls, and then the user's command. It returns what the picture shows.
func tell(ctx context.Context, s *server) ([]line, error) {
	var lines []line
	var copies []string
	for _, st := range steps {
		args, shown := st.args, st.shown
		if st.code != nil {
			args = map[string]any{"code": strings.Join(st.code, "\n"), "session_id": "home"}
		}
		if st.inCopy {
			if len(copies) == 0 {
				return nil, fmt.Errorf("%s: there is no copy yet", st.tool)
			}
			args["session_id"] = copies[0]
			shown = "session_id: " + copies[0]
		}
		got, err := s.call(ctx, st.tool, args)
		if err != nil {
			return nil, err
		}
		if got.Copies != nil {
			copies = got.Copies
		}
		lines = append(lines, called(st.tool, shown))
		for _, l := range st.code {
			lines = append(lines, code(l))
		}
		for _, l := range strings.Split(got.Content[len(got.Content)-1].Text, "\n") {
			lines = append(lines, answers(l)...)
		}
		lines = append(lines, line{})
	}
	out, err := s.shell(ctx, listing).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", listing, err)
	}
	lines = append(lines, typed(listing))
	for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if len(l) > columns {
			return nil, fmt.Errorf("the window is too narrow for %q", l)
		}
		lines = append(lines, line{spans: []span{{text: l, class: "out"}}})
	}
	return lines, nil
}
