package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"sandlot/internal/api/protocol"
	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// Consent shows the user a message of the server and returns whether the user consents.
type Consent func(ctx context.Context, message string) bool

// CallTool calls a tool over MCP, as a client that supports elicitation, and returns the
// result as JSON. The HTTP API has no way to ask a user for consent, and none to consent
// in the place of one. version is the client's, for the server to log.
func (c *Client) CallTool(ctx context.Context, version, tool string, args any,
	consent Consent) (json.RawMessage, error) {
	stream, err := c.upgrade(ctx, stdioPath, protocol.UpgradeMCP)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	call := map[string]any{"name": tool, "arguments": args}
	res, err := converse(ctx, json.NewEncoder(stream), json.NewDecoder(stream), version, call, consent)
	if errors.Is(err, io.EOF) {
		err = errors.New("the server has closed the connection")
	}
	return res, err
}

// CallOver is CallTool over MCP's stdio transport, with a program that may be a third-party's. It consents to nothing.
func CallOver(ctx context.Context, from io.Reader, to io.Writer, version, tool string, args any) (json.RawMessage,
	error) {
	call := map[string]any{"name": tool, "arguments": args}
	return converse(ctx, json.NewEncoder(to), json.NewDecoder(from), version, call,
		func(context.Context, string) bool { return false })
}

// The ids of the client's two requests.
const initializeID, callID = "1", "2"

// converse initializes the MCP session, calls the tool, and answers the server's requests
// until the result is there.
func converse(ctx context.Context, enc *json.Encoder, dec *json.Decoder, version string, call map[string]any,
	consent Consent) (json.RawMessage, error) {
	err := enc.Encode(rawjson.Envelope{ID: json.RawMessage(initializeID), Method: "initialize",
		Params: map[string]any{"protocolVersion": revision.Stateful,
			"capabilities": map[string]any{"elicitation": map[string]any{}},
			"clientInfo":   map[string]any{"name": "sandlot", "version": version}}})
	for err == nil {
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
			err = enc.Encode(answer(ctx, m.ID, m.Method, m.Params, consent))
		case m.Method != "": // a notification
		case m.Error != nil:
			return nil, &protocol.Problem{Title: m.Error.Data.ErrorCode, Detail: m.Error.Message, Data: m.Error.Data}
		case string(m.ID) == initializeID:
			err = errors.Join(enc.Encode(rawjson.Envelope{Method: "notifications/initialized"}),
				enc.Encode(rawjson.Envelope{ID: json.RawMessage(callID), Method: "tools/call", Params: call}))
		default:
			return m.Result, nil
		}
	}
	return nil, err
}

// answer returns the response to a request of the server.
func answer(ctx context.Context, id json.RawMessage, method string, params json.RawMessage,
	consent Consent) rawjson.Envelope {
	switch method {
	case "ping":
		return rawjson.Envelope{ID: id, Result: struct{}{}}
	case "elicitation/create":
		var q struct{ Message string }
		if json.Unmarshal(params, &q) != nil {
			break
		}
		if !consent(ctx, q.Message) {
			return rawjson.Envelope{ID: id, Result: map[string]any{"action": "decline"}}
		}
		return rawjson.Envelope{ID: id, Result: map[string]any{"action": "accept",
			"content": map[string]any{"decision": "allow"}}}
	}
	return rawjson.Envelope{ID: id, Error: map[string]any{"code": -32601, "message": "this client cannot do that"}}
}
