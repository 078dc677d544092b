// An agent with the MCP client of mcp-go, and a model that is told by variables.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type object = map[string]any

// message is one of the model.
type message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	ToolCalls []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls,omitempty"`
}

func run(ctx context.Context) error {
	c, err := client.NewStreamableHttpClient(os.Getenv("SANDLOT_URL"), transport.WithHTTPHeaders(map[string]string{
		"Authorization": "Bearer " + os.Getenv("SANDLOT_TEST_TOKEN")}))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(ctx); err != nil {
		return err
	}
	hello := mcp.InitializeRequest{}
	hello.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	hello.Params.ClientInfo = mcp.Implementation{Name: "mcp-go-agent", Version: "1"}
	if _, err := c.Initialize(ctx, hello); err != nil {
		return err
	}
	list, err := c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return err
	}
	var tools []any
	for _, t := range list.Tools {
		tools = append(tools, object{"type": "function", "function": object{"name": t.Name, "description": t.Description,
			"parameters": t.InputSchema}})
	}
	messages := []any{object{"role": "user", "content": "go"}}
	for {
		m, err := ask(ctx, messages, tools)
		if err != nil {
			return err
		}
		if len(m.ToolCalls) == 0 {
			fmt.Println(m.Content)
			return nil
		}
		messages = append(messages, m)
		for _, call := range m.ToolCalls {
			var arguments any
			if err := json.Unmarshal([]byte(call.Function.Arguments), &arguments); err != nil {
				return err
			}
			request := mcp.CallToolRequest{}
			request.Params.Name, request.Params.Arguments = call.Function.Name, arguments
			result, err := c.CallTool(ctx, request)
			messages = append(messages, object{"role": "tool", "tool_call_id": call.ID, "content": content(result, err)})
		}
	}
}

// content is a result as models get it.
func content(result *mcp.CallToolResult, err error) any {
	if err != nil {
		return "error: " + err.Error()
	}
	var blocks []any
	for _, block := range result.Content {
		switch b := block.(type) {
		case mcp.TextContent:
			blocks = append(blocks, object{"type": "text", "text": b.Text})
		case mcp.ImageContent:
			url := "data:" + b.MIMEType + ";base64," + b.Data
			blocks = append(blocks, object{"type": "image_url", "image_url": object{"url": url}})
		}
	}
	return blocks
}

// ask asks the model for its next message.
func ask(ctx context.Context, messages, tools []any) (*message, error) {
	body, err := json.Marshal(object{"model": os.Getenv("MODEL"), "messages": messages, "tools": tools})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("MODEL_URL")+"/v1/chat/completions",
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var out struct{ Choices []struct{ Message message } }
	if err := json.NewDecoder(answer.Body).Decode(&out); err != nil {
		return nil, err
	}
	if len(out.Choices) == 0 {
		return nil, fmt.Errorf("the model answers with status %d", answer.StatusCode)
	}
	return &out.Choices[0].Message, nil
}
