package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// mcpConsented calls a tool for which the server may want its user's consent. It
// asks for that as it asks any MCP client's user: so this is one then, and
// nothing in the API says yes in the place of a person.
func (p *program) mcpConsented(c *cobra.Command, name string, ask any, sure bool) error {
	err := p.mcpResult(c, name, ask)
	if wants, ok := errors.AsType[*protocol.Problem](err); !ok ||
		wants.ErrorCode != fault.New(fault.Forbidden, "").Code() ||
		wants.Context["consent"] != "ask" {
		return err
	}
	client, done, err := p.connect(c.Context(), "ERROR")
	if err != nil {
		return err
	}
	res, err := p.asked(c.Context(), client, name, ask, sure)
	if err = errors.Join(err, done()); err != nil {
		return err
	}
	return p.printed(res)
}

// asked calls a tool as an MCP client whose user can be asked: the one at the
// terminal.
func (p *program) asked(ctx context.Context, client *client.Client, name string, args any,
	sure bool) (json.RawMessage, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, say := io.Pipe()
	hear, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := client.Stdio(ctx, in, out)
		if err == nil {
			err = errors.New("the server has closed the connection")
		}
		in.CloseWithError(err)
		out.CloseWithError(err)
		ended <- err
	}()
	res, err := p.converse(ctx, say, hear, name, args, sure)
	cancel()
	say.Close()
	hear.Close()
	<-ended
	return res, err
}

// converse makes the one call, and answers what is asked meanwhile.
func (p *program) converse(ctx context.Context, say io.Writer, hear io.Reader, name string, args any,
	sure bool) (json.RawMessage, error) {
	enc := json.NewEncoder(say)
	err := enc.Encode(rawjson.Envelope{ID: json.RawMessage("1"), Method: "initialize",
		Params: map[string]any{"protocolVersion": revision.Stateful,
			"capabilities": map[string]any{"elicitation": map[string]any{}},
			"clientInfo":   map[string]any{"name": "sandlot", "version": app.Version}}})
	for dec := json.NewDecoder(hear); err == nil; {
		var m struct {
			ID             json.RawMessage
			Method         string
			Params, Result json.RawMessage
			Error          *struct {
				Message string
				Data    fault.Data
			}
		}
		if err = dec.Decode(&m); err != nil {
			break
		}
		switch {
		case m.Method != "" && m.ID != nil:
			err = enc.Encode(p.answer(ctx, m.ID, m.Method, m.Params, sure))
		case m.Method != "": // a notification
		case m.Error != nil:
			return nil, &protocol.Problem{Title: m.Error.Data.ErrorCode, Detail: m.Error.Message, Data: m.Error.Data}
		case string(m.ID) == "1":
			err = errors.Join(enc.Encode(rawjson.Envelope{Method: "notifications/initialized"}),
				enc.Encode(rawjson.Envelope{ID: json.RawMessage("2"), Method: "tools/call",
					Params: map[string]any{"name": name, "arguments": args}}))
		default:
			return m.Result, nil
		}
	}
	return nil, err
}

// answer answers a question of the server: the user has seen it, and said so.
func (p *program) answer(ctx context.Context, id json.RawMessage, method string, params json.RawMessage,
	sure bool) rawjson.Envelope {
	switch method {
	case "ping":
		return rawjson.Envelope{ID: id, Result: struct{}{}}
	case "elicitation/create":
		var q struct{ Message string }
		if json.Unmarshal(params, &q) != nil {
			break
		}
		fmt.Fprintf(p.err, "%s\n\n", harmless(q.Message))
		if !sure && !p.onTerminal() {
			fmt.Fprintln(p.err, "There is no terminal to ask on: --yes consents.")
		}
		if !sure && (!p.onTerminal() || p.confirm(ctx, "Do you consent?") != nil) {
			return rawjson.Envelope{ID: id, Result: map[string]any{"action": "decline"}}
		}
		return rawjson.Envelope{ID: id, Result: map[string]any{"action": "accept",
			"content": map[string]any{"decision": "allow"}}}
	}
	return rawjson.Envelope{ID: id, Error: map[string]any{"code": -32601, "message": "this client cannot do that"}}
}
