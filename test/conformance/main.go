// Command conformance is the client that MCP's conformance suite tests: it does
// the work of the scenario that MCP_CONFORMANCE_SCENARIO names, on the server at
// the URL that is its argument, by package upstream. With SANDLOT_CONFORMANCE_HUB,
// the path of sandlot's program, it does that through a hub that is connected to
// that server.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: MCP_CONFORMANCE_SCENARIO=NAME conformance URL")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// given is what the suite tells a client about a scenario.
type given struct {
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	ToolCalls    []struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"toolCalls"`
}

func run(ctx context.Context, address string) error {
	name := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	var g given
	if s := os.Getenv("MCP_CONFORMANCE_CONTEXT"); s != "" {
		if err := json.Unmarshal([]byte(s), &g); err != nil {
			return fmt.Errorf("MCP_CONFORMANCE_CONTEXT is not what was expected: %w", err)
		}
	}
	work, login, err := scenario(name)
	if err != nil {
		return err
	}
	if program := os.Getenv("SANDLOT_CONFORMANCE_HUB"); program != "" {
		return throughHub(ctx, program, address, work, login, g)
	}
	r := transport.Remote{URL: address}
	if login {
		if r.OAuth, err = loginHandler(g); err != nil {
			return err
		}
	}
	s, err := mcpclient.Connect(ctx, transport.HTTP(r), mcpclient.Options{Name: "sandlot-conformance", Version: "1",
		Capabilities: json.RawMessage(`{"elicitation":{"form":{}}}`), Handler: answering{}})
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, direct{s}, g), s.Close())
}

// direct is a server that is spoken to without anything between.
type direct struct{ *mcpclient.Session }

func (d direct) List(ctx context.Context, method, field string) ([]json.RawMessage, error) {
	return d.Session.List(ctx, method, field, 1000)
}

func (d direct) Call(ctx context.Context, method string, params map[string]json.RawMessage,
	schema json.RawMessage) (json.RawMessage, error) {
	return d.Session.Call(ctx, mcpclient.Request{Method: method, Params: params, Schema: schema})
}

func (d direct) Valid(tool json.RawMessage) bool { return mcpclient.CheckTool(tool) == nil }

// answering answers what servers of the older era ask.
type answering struct{}

func (answering) HandleRequest(_ context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method != "elicitation/create" {
		return nil, &transport.Error{Code: -32601, Message: "unknown method"}
	}
	return elicited(params)
}

func (answering) HandleNotification(string, json.RawMessage) {}

// loginHandler logs in as a user would that agrees to everything at once.
func loginHandler(g given) (auth.OAuthHandler, error) {
	const callback = "http://localhost:3000/callback"
	c := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL:              callback,
		AuthorizationCodeFetcher: fetchCode,
		ClientIDMetadataDocumentConfig: &auth.ClientIDMetadataDocumentConfig{
			URL: "https://conformance-test.local/client-metadata.json"},
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{
			Metadata: &oauthex.ClientRegistrationMetadata{RedirectURIs: []string{callback}}},
	}
	if g.ClientID != "" {
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: g.ClientID,
			ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: g.ClientSecret}}
	}
	return auth.NewAuthorizationCodeHandler(c)
}

// fetchCode takes the code out of the redirect that the suite's authorization
// server answers with, without a browser.
func fetchCode(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, args.URL, nil)
	if err != nil {
		return nil, err
	}
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	u, err := url.Parse(resp.Header.Get("Location"))
	if err != nil {
		return nil, err
	}
	q := u.Query()
	return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
}
