package builtin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/port"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

func portParam() tool.Param {
	return tool.Param{Name: "port", Type: tool.Integer, Required: true, Description: "The TCP port that the server in the session listens on, on 127.0.0.1 or any address."}.Range(1, 65535)
}

func exposePort() tool.Tool {
	return tool.Tool{
		Name: "expose_port", Title: "Expose a port",
		Description: "Give a link by which the user can open a web server that runs in a session, in their browser or from programs. The link holds a token: whoever has it gets in, until it expires or close_port is called. A new link for the same port takes the old one's place.",
		Params: []tool.Param{portParam(), sessionParam(),
			{Name: "public", Type: tool.Boolean, Default: false, Description: "Let in everybody who can reach this server, without the link's token."},
			tool.Param{Name: "expires_in", Type: tool.Integer, Default: int(port.Life.Seconds()), Description: "Seconds until the link ends."}.Range(1, port.MaxLife.Seconds())},
		Output: outputSchema([]string{"url", "port", "expires_at", "session_id"}, sessionFields(map[string]any{
			"url":        typed("string", "The link to give to the user."),
			"path_url":   typed("string", "The same for where that host name cannot be resolved; pages that need cookies, storage or an origin of their own do not work there."),
			"port":       typed("integer", "The port."),
			"public":     typed("boolean", "Whether no token is needed."),
			"expires_at": typed("string", "When the link ends, RFC 3339."),
			"listening":  typed("boolean", "Whether something listens on the port now."),
		})),
		Hints: tool.Hints{OpenWorld: true},
	}
}

func (t *Tools) expose(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	c.Fresh = false
	l, err := t.open(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	number := int(a.Int("port", 0))
	listening := true
	conn, err := l.Dial(ctx, number)
	switch {
	case err == nil:
		conn.Close()
	case errors.Is(err, session.ErrNobody):
		listening = false
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // it is slow to answer
	default:
		return nil, l.Fault(ctx, err, fault.Connection)
	}
	record, token, err := t.Ports.Expose(ctx, c.Principal.ID, l.ID(), number, a.Bool("public"), time.Duration(a.Int("expires_in", int64(port.Life.Seconds())))*time.Second)
	if err != nil {
		return nil, err
	}
	if record.Public {
		token = ""
	}
	links := t.Ports.Links
	r := &tool.Result{Fields: where(l)}
	r.Fields["url"], r.Fields["path_url"] = links.URL(l.ID(), number, token), links.Path(l.ID(), number, token)
	r.Fields["port"], r.Fields["public"], r.Fields["expires_at"], r.Fields["listening"] = number, record.Public, when(record.Expires), listening
	text := fmt.Sprintf("Port %d is at %s until %s.", number, r.Fields["url"], when(record.Expires))
	if record.Public {
		text += " It is public: no token is needed."
	}
	if !listening {
		text += fmt.Sprintf(" Nothing listens on port %d yet; the link works as soon as something does.", number)
	}
	if t.Ports.Unserved() {
		text += fmt.Sprintf(" This server has no address on the network, so the link works once `sandlot serve` runs in its place; `sandlot forward %s %d` works now.", l.ID(), number)
	}
	r.Content = append(notice(l), tool.Text(text))
	r.Words = words(l, "path_url: "+links.Path(l.ID(), number, token))
	return r, nil
}

func closePort() tool.Tool {
	return tool.Tool{
		Name: "close_port", Title: "Close a port",
		Description: "Take back a link of expose_port: it is of no use any more, and connections that came by it end. The server in the session runs on.",
		Params: []tool.Param{portParam(), {Name: "session_id", Type: tool.String,
			Description: "The session whose port it is; leave it out for your home."}},
		Output: outputSchema([]string{"success", "port", "session_id"}, map[string]any{
			"success": typed("boolean", "False when that port is not exposed."), "port": typed("integer", "The port."), "session_id": typed("string", "The session.")}),
		Hints: tool.Hints{Destructive: true, Idempotent: true},
	}
}

func (t *Tools) closePort(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	id, err := t.Sessions.Find(c.Principal, a.Text("session_id"))
	if err != nil {
		return nil, err
	}
	number := int(a.Int("port", 0))
	ok, err := t.Ports.Close(ctx, c.Principal.ID, id, number)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Port %d of session %s is closed", number, id)
	if !ok {
		text = fmt.Sprintf("Port %d of session %s is not exposed", number, id)
	}
	return &tool.Result{Content: []tool.Content{tool.Text(text)}, Fields: map[string]any{"success": ok, "port": number, "session_id": id}}, nil
}

// ports are the exposed ports of a session as its owner sees them.
func (t *Tools) ports(owner, id string) []map[string]any {
	rows := []map[string]any{}
	for _, r := range t.Ports.List(owner, id) {
		rows = append(rows, map[string]any{"port": r.Port, "public": r.Public, "url": t.Ports.Links.URL(id, r.Port, ""),
			"path_url": t.Ports.Links.Path(id, r.Port, ""), "created_at": when(r.Created), "expires_at": when(r.Expires)})
	}
	return rows
}
