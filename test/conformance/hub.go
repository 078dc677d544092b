package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/mcpclient"
	"sandlot/internal/mcpclient/transport"
)

// hub is the suite's server as a Sandlot of its own offers it.
type hub struct {
	direct
	browser *http.Client
	visited map[string]bool
}

// issuerOf is the authorization server that the suite's server names, which an
// operator would know.
func issuerOf(ctx context.Context, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	for _, path := range []string{u.Path, ""} {
		at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/.well-known/oauth-protected-resource" + path}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		var m struct {
			Servers []string `json:"authorization_servers"`
		}
		err = json.NewDecoder(resp.Body).Decode(&m)
		resp.Body.Close()
		if err == nil && len(m.Servers) > 0 {
			return m.Servers[0], nil
		}
	}
	return "", fmt.Errorf("%s names no authorization server", address)
}

// throughHub starts a Sandlot with the suite's server in its settings, and does
// the work there.
func throughHub(ctx context.Context, program, address string, w work, login bool, g given) (err error) {
	dir, err := os.MkdirTemp("", "sandlot-conformance-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	settings := map[string]any{"url": address, "prefix": "", "trust": "warn", "timeout": 20}
	if login {
		settings["oauth_client_id"] = "https://conformance-test.local/client-metadata.json"
	}
	if g.ClientID != "" {
		issuer, err := issuerOf(ctx, address)
		if err != nil {
			return err
		}
		settings["oauth_client_id"], settings["oauth_client_secret"], settings["oauth_issuer"] = g.ClientID,
			g.ClientSecret, issuer
	}
	text, err := json.Marshal(map[string]any{"mcp": map[string]any{"fixture": settings}}) // JSON is YAML
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "sandlot.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	// A service has no home that boots when it connects.
	token, err := exec.CommandContext(ctx, program, "token", "create", "--user", "conformance", "--service",
		"--state-dir", state).Output()
	if err != nil {
		return fmt.Errorf("making a token: %w", err)
	}
	serve := exec.Command(program, "serve", "--state-dir", state, "--config", file, "--port", port, "--host",
		"127.0.0.1")
	serve.Env = append(os.Environ(), "SANDLOT_POOL_SIZE=0", "SANDLOT_NETWORK_REGISTRIES=none",
		// the suite's authorization servers
		"SANDLOT_NETWORK_ALLOW_PRIVATE=localhost=127.0.0.0/8,127.0.0.1=127.0.0.0/8",
		"SANDLOT_NETWORK_HOSTS=localhost=127.0.0.1")
	var log bytes.Buffer
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() {
		serve.Process.Signal(os.Interrupt)
		serve.Wait()
		if err != nil {
			fmt.Fprintln(os.Stderr, log.String())
		}
	}()
	s, err := connectHub(ctx, "http://127.0.0.1:"+port, strings.TrimSpace(string(token)))
	if err != nil {
		return err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	h := &hub{direct{s}, &http.Client{Timeout: 10 * time.Second, Jar: jar}, map[string]bool{}}
	return errors.Join(h.ready(ctx), w(ctx, h, g), s.Close())
}

func connectHub(ctx context.Context, base, token string) (*mcpclient.Session, error) {
	r := transport.Remote{URL: base + "/mcp", Header: http.Header{"Authorization": {"Bearer " + token}}}
	for {
		resp, err := http.Get(base + "/healthz")
		if err == nil {
			resp.Body.Close()
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return mcpclient.Connect(ctx, transport.HTTP(r), mcpclient.Options{
		Name: "conformance", Version: "1", StatefulFirst: true,
		Capabilities: json.RawMessage(`{"elicitation":{"form":{}}}`), Handler: answering{}})
}

// ready waits until the suite's server is connected, and logs in as a user
// would that agrees to everything at once.
func (h *hub) ready(ctx context.Context) error {
	for {
		raw, err := h.direct.Call(ctx, "tools/call", map[string]json.RawMessage{"name": quoted("list_external_mcp"),
			"arguments": json.RawMessage("{}")}, nil)
		if err != nil {
			return err
		}
		var r struct {
			StructuredContent struct {
				Connections []struct{ State, AuthURL, LastError string }
			} `json:"structuredContent"`
		}
		if err := json.Unmarshal(raw, &r); err != nil || len(r.StructuredContent.Connections) != 1 {
			return fmt.Errorf("the connections are %s", raw)
		}
		switch c := r.StructuredContent.Connections[0]; {
		case c.State == "connected" || c.State == "needs_approval":
			return nil
		case c.AuthURL != "" && !h.visited[c.AuthURL]:
			if err := h.visit(c.AuthURL); err != nil {
				return err
			}
		case c.State == "error" || c.State == "backoff", c.State == "idle" && c.LastError != "":
			return fmt.Errorf("%s: %s", c.State, c.LastError)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), raw)
		}
	}
}

// onward is where the page goes on to that a link to log in leads to.
var onward = regexp.MustCompile(`href="(\?go=[0-9a-f]+)"`)

// visit is the user's browser, and a user who goes on.
func (h *hub) visit(address string) error {
	h.visited[address] = true
	page, err := h.see(address)
	if err != nil {
		return err
	}
	next := onward.FindSubmatch(page)
	if next == nil {
		return fmt.Errorf("the page does not lead to a log-in: %s", page)
	}
	_, err = h.see(address + string(next[1]))
	return err
}

func (h *hub) see(address string) ([]byte, error) {
	resp, err := h.browser.Get(address)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return nil, fmt.Errorf("the browser came back with status %d", resp.StatusCode)
	}
	return io.ReadAll(resp.Body)
}

func (h *hub) List(ctx context.Context, method, field string) ([]json.RawMessage, error) {
	all, err := h.direct.List(ctx, method, field)
	var theirs []json.RawMessage
	for _, raw := range all {
		var t tool
		if method == "tools/list" && json.Unmarshal(raw, &t) == nil && ours[t.Name] {
			continue
		}
		theirs = append(theirs, raw)
	}
	return theirs, err
}

// ours are Sandlot's own tools.
var ours = map[string]bool{}

func init() {
	for _, name := range strings.Fields(`execute_code execute_command sandbox_read_file sandbox_write_file sandbox_edit_file sandbox_list_files list_processes read_process
		write_process stop_process expose_port close_port get_sessions stop_session get_volume_path sandbox_shell_exec connect_external_mcp
		auto_install_and_connect_mcp list_external_mcp disconnect_external_mcp restart_external_mcp external_mcp_logs
		snapshot_session list_snapshots restore_snapshot remove_snapshot fork_session`) {
		ours[name] = true
	}
}

// Call calls again when the user had to log in for it.
func (h *hub) Call(ctx context.Context, method string, params map[string]json.RawMessage,
	schema json.RawMessage) (json.RawMessage, error) {
	for tries := 0; ; tries++ {
		raw, err := h.direct.Call(ctx, method, params, schema)
		var data struct {
			Context struct {
				URL string `json:"auth_url"`
			} `json:"context"`
		}
		var said *transport.Error
		var result struct {
			Meta struct {
				Error struct{ Data json.RawMessage } `json:"sandlot/error"`
			} `json:"_meta"`
		}
		about := json.RawMessage(nil)
		if errors.As(err, &said) {
			about = said.Data
		} else if err == nil && json.Unmarshal(raw, &result) == nil { // a call that failed
			about = result.Meta.Error.Data
		}
		if tries >= 5 || json.Unmarshal(about, &data) != nil || data.Context.URL == "" {
			return raw, err
		}
		if err := h.visit(data.Context.URL); err != nil {
			return nil, err
		}
		if err := h.ready(ctx); err != nil {
			return nil, err
		}
	}
}

// Valid says that all that the hub offers can be used: it has looked.
func (h *hub) Valid(json.RawMessage) bool { return true }
