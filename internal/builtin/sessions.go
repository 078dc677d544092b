package builtin

import (
	"context"
	"fmt"
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/session"
	"sandlot/internal/tool"
	"sandlot/internal/volume"
)

func getSessions() tool.Tool {
	return tool.Tool{
		Name: "get_sessions", Title: "List sessions",
		Description: "List your sessions: what each is made of, how large it is, what it uses, what runs in it.",
		Params:      []tool.Param{{Name: "session_id", Type: tool.String, Description: "Only this one."}},
		Output: outputSchema([]string{"sessions"}, map[string]any{
			"sessions": map[string]any{"type": "array", "items": map[string]any{"type": "object"}}}),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) sessions(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	infos, err := t.Sessions.List(ctx, c.Principal, a.Text("session_id"))
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	lines := []string{}
	for _, i := range infos {
		row := sessionRow(i)
		row["ports"] = t.ports(i.Owner, i.ID)
		rows = append(rows, row)
		kind := ""
		if i.Home {
			kind = " (home)"
		}
		lines = append(lines, fmt.Sprintf("%s%s  %s  %s  %s  last used %s", i.ID, kind, i.Status, i.Template, i.Flavor.Name, when(i.Used)))
	}
	text := strings.Join(lines, "\n")
	if text == "" {
		text = "No sessions. The first execute_code or execute_command makes one."
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"sessions": rows}}, nil
}

// sessionRow is a session as clients see it.
func sessionRow(i session.Info) map[string]any {
	row := map[string]any{
		"session_id": i.ID, "home": i.Home, "template": i.Template, "flavor": i.Flavor.Name,
		"created_at": when(i.Created), "last_accessed": when(i.Used), "status": i.Status,
		"namespace": "default", "sandbox_name": i.Sandbox,
		"limits":    map[string]any{"cpus": i.Flavor.CPUs, "memory_mb": i.Flavor.MemoryMB},
		"processes": 0,
		"network":   map[string]any{"sent_mb": megabytes(i.Traffic.Up), "received_mb": megabytes(i.Traffic.Down)},
	}
	if i.MaxBytes > 0 {
		row["limits"].(map[string]any)["network_mb"] = megabytes(uint64(i.MaxBytes))
	}
	if u := i.Usage; u != nil {
		row["processes"] = u.Processes
		row["usage"] = map[string]any{"memory_mb": megabytes(u.MemoryBytes), "cpu_seconds": float64(u.CPU.Microseconds()) / 1e6, "disk_mb": megabytes(u.DiskBytes)}
	}
	return row
}

// megabytes rounds down to kilobytes.
func megabytes(bytes uint64) float64 { return float64(bytes>>10) / 1024 }

func stopSession() tool.Tool {
	return tool.Tool{
		Name: "stop_session", Title: "Stop a session",
		Description: "End a session: its processes and variables are gone, and, except for your home, its files too.",
		Params:      []tool.Param{{Name: "session_id", Type: tool.String, Required: true, Description: "Which one; \"home\" for your home, whose files stay."}},
		Output: outputSchema([]string{"success", "session_id"}, map[string]any{
			"success": typed("boolean", "False when there is no such session."), "session_id": typed("string", "The session.")}),
		Hints: tool.Hints{Destructive: true, Idempotent: true},
	}
}

func (t *Tools) end(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	id := agent.Printable(a.Text("session_id"), 80)
	ok := t.Sessions.Stop(ctx, c.Principal, a.Text("session_id"))
	text := fmt.Sprintf("Session %s stopped successfully", id)
	if !ok {
		text = fmt.Sprintf("Session %s not found", id)
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"success": ok, "session_id": id}}, nil
}

func getVolumePath() tool.Tool {
	return tool.Tool{
		Name: "get_volume_path", Title: "Show shared folders",
		Description: "Show which folders of the host are shared with every session, and where they are in it.",
		Output: outputSchema([]string{"volume_mappings"}, map[string]any{
			"volume_mappings": map[string]any{"type": "array", "items": map[string]any{"type": "object"}}}),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) volumes(context.Context, tool.Call, tool.Args) (*tool.Result, error) {
	rows := []map[string]any{}
	lines := []string{}
	var all []volume.Usage
	if t.Volumes != nil {
		all = t.Volumes()
	}
	for _, v := range all {
		row := map[string]any{"host_path": v.Source, "container_path": v.Target, "read_only": v.ReadOnly || v.Full}
		line := fmt.Sprintf("%s -> %s", v.Source, v.Target)
		if v.Measured {
			row["used_mb"], row["limit_mb"], row["full"] = v.UsedBytes>>20, v.LimitBytes>>20, v.Full
		}
		if v.Full {
			line += " (" + fullness(v) + ")"
		}
		rows, lines = append(rows, row), append(lines, line)
	}
	text := strings.Join(lines, "\n")
	if text == "" {
		text = "No shared folders are set."
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"volume_mappings": rows}}, nil
}

// fullness says why a shared folder can only be read, and until when.
func fullness(v volume.Usage) string {
	switch v.Why {
	case volume.Deep:
		return "folders in it are too deep, or move too fast, to be measured; it can only be read until they are removed on the host"
	case volume.Closed:
		return "folders in it cannot be read by the server, so that it cannot be measured; " +
			"it can only be read until they can (chmod u+rx on the host)"
	case volume.Slow:
		return "it could not be measured in time; it can only be read until it is: fewer files are quicker"
	case volume.Disk:
		return "its disk is nearly full; it can only be read until there is room on the disk of the host"
	}
	return fmt.Sprintf("full: %d of %d MB; it can only be read until something in it is removed on the host",
		v.UsedBytes>>20, v.LimitBytes>>20)
}
