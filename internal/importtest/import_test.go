// Package importtest holds the table of who may import whom.
package importtest

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// only lists packages that few may import: these, and what is below them.
var only = map[string][]string{
	// Implementations are put together in one place.
	// sandlot-runsc is a part of the gVisor runtime, in a process of its own.
	"sandlot/internal/runtime": {"sandlot/internal/app", "sandlot/cmd/sandlot-runsc"},
	"sandlot/internal/store":   {"sandlot/internal/app", "sandlot/internal/replica"},
	"sandlot/internal/replica": {"sandlot/internal/app"},
	// Edges.
	"sandlot/internal/gateway":      {"sandlot/internal/app", "sandlot/internal/api"},
	"sandlot/internal/api":          {"sandlot/internal/app", "sandlot/internal/cli", "sandlot/internal/tui", "sandlot/test/reference"},
	"sandlot/internal/cli":          {"sandlot/cmd/sandlot"},
	"sandlot/internal/app":          {"sandlot/internal/cli"},
	"sandlot/internal/clientconfig": {"sandlot/internal/api", "sandlot/internal/cli", "sandlot/internal/config"},
	"sandlot/internal/autostart":    {"sandlot/internal/cli"},
	// Text for people is made where results are.
	"sandlot/internal/terminal": {"sandlot/internal/builtin", "sandlot/internal/cli", "sandlot/internal/tty"},
	"sandlot/internal/tty":      {"sandlot/internal/app", "sandlot/internal/hub"},
	// The operator's own texts alone are expanded, and their commands run.
	"sandlot/internal/expand": {"sandlot/internal/config", "sandlot/internal/clientconfig"},
	// What hostile code has written is walked through in one place.
	"sandlot/internal/tree": {"sandlot/internal/workspace", "sandlot/internal/runtime",
		"sandlot/internal/volume", "sandlot/internal/cli"},
	"sandlot/internal/volume": {"sandlot/internal/app", "sandlot/internal/builtin"},
	"sandlot/internal/limit": {"sandlot/internal/api", "sandlot/internal/gateway", "sandlot/internal/app",
		"sandlot/internal/hub",
		"sandlot/internal/tool", "sandlot/internal/builtin", "sandlot/internal/servers", "sandlot/internal/toolcall"},
	"sandlot/internal/agent/direct": {"sandlot/internal/agent"},
	// Inside the sandbox.
	"sandlot/internal/guest":         {"sandlot/cmd/sandlot-agent", "sandlot/test/hostile"},
	"sandlot/internal/guest/interp":  {"sandlot/internal/guest"},
	"sandlot/internal/guest/network": {"sandlot/internal/guest"},
	// Each foreign library stays behind one package.
	"github.com/modelcontextprotocol/go-sdk/mcp":     {"sandlot/internal/gateway", "sandlot/test/bench", "sandlot/test/tasks"},
	"github.com/modelcontextprotocol/go-sdk/jsonrpc": {"sandlot/internal/gateway", "sandlot/test/bench"},
	"github.com/modelcontextprotocol/go-sdk/auth": {"sandlot/internal/servers", "sandlot/internal/mcpclient",
		"sandlot/test/conformance"},
	"github.com/modelcontextprotocol/go-sdk/oauthex": {"sandlot/internal/servers", "sandlot/test/conformance"},
	// Third-party servers are spoken to in one place.
	"sandlot/internal/servers/process": {"sandlot/internal/servers"},
	"sandlot/internal/servers/install": {"sandlot/internal/servers", "sandlot/internal/builtin"},
	"sandlot/internal/mcpclient":       {"sandlot/internal/servers", "sandlot/test/conformance"},
	"github.com/coder/websocket":       {"sandlot/internal/api", "sandlot/test"},
	"github.com/google/jsonschema-go": {"sandlot/internal/tool", "sandlot/internal/api/openapi",
		"sandlot/internal/revision/schematest"},
	"gvisor.dev/gvisor":             {"sandlot/cmd/sandlot-runsc"},
	"github.com/google/subcommands": {"sandlot/cmd/sandlot-runsc"},
	"golang.org/x/crypto":           {"sandlot/internal/certificate", "sandlot/deploy/release"},
	"github.com/go-jose/go-jose":    {"sandlot/internal/auth/oidc"},
	"modernc.org/sqlite":            {"sandlot/internal/finder", "sandlot/internal/store"},
	"github.com/jackc/pgx":          {"sandlot/internal/store", "sandlot/internal/replica"},
	"charm.land":                    {"sandlot/internal/tui"},
	"github.com/spf13/cobra":        {"sandlot/internal/cli"},
	"go.yaml.in/yaml": {"sandlot/internal/builtin", "sandlot/internal/clientconfig", "sandlot/internal/config",
		"sandlot/deploy/release"},
	"github.com/BurntSushi/toml": {"sandlot/internal/clientconfig"},
	"github.com/hashicorp/yamux": {"sandlot/internal/agent", "sandlot/internal/guest", "sandlot/test/hostile"},
	"github.com/prometheus/client_golang": {"sandlot/internal/api", "sandlot/internal/api/metric",
		"sandlot/internal/telemetry"},
	"go.opentelemetry.io":             {"sandlot/internal/telemetry"},
	"golang.org/x/net/dns":            {"sandlot/internal/guest/network"},
	"golang.org/x/net/http/httpproxy": {"sandlot/internal/egress"},
	"golang.org/x/time": {"sandlot/internal/egress", "sandlot/internal/agent",
		"sandlot/internal/guest/network", "sandlot/internal/toolcall", "sandlot/internal/registry"},
	"golang.org/x/sync": {"sandlot/internal/limit", "sandlot/internal/replica", "sandlot/internal/port", "sandlot/internal/servers",
		"sandlot/internal/snapshot",
		"sandlot/internal/session", "sandlot/internal/app", "sandlot/internal/guest/network", "sandlot/internal/oci",
		"sandlot/internal/runtime/docker", "sandlot/internal/runtime/microsandbox", "sandlot/test/bench"},
	"github.com/klauspost/compress": {"sandlot/internal/oci", "sandlot/internal/runtime/program",
		"sandlot/internal/runtime/gvisor/frozen"},
	"github.com/google/go-containerregistry": {"sandlot/deploy/release", "sandlot/internal/oci", "sandlot/test/bench"},
	"golang.org/x/net/proxy":                 {"sandlot/internal/egress"},
	"mvdan.cc/sh":                            {"sandlot/internal/expand"},
	"github.com/tailscale/hujson":            {"sandlot/internal/clientconfig"},
	"github.com/zalando/go-keyring":          {"sandlot/internal/keyring"},
	"sandlot/internal/keyring":               {"sandlot/internal/app"},
	"software.sslmate.com/src/go-pkcs12":     {"sandlot/internal/cacerts"},
	"github.com/tiktoken-go/tokenizer":       {"sandlot/test/tokens"},
	"github.com/moby/moby/client":            {"sandlot/internal/runtime/docker", "sandlot/internal/dockercommand"},
	"github.com/moby/moby/api":               {"sandlot/internal/runtime/docker", "sandlot/internal/dockercommand"},
	"github.com/distribution/reference":      {"sandlot/internal/runtime/docker", "sandlot/internal/dockercommand"},
	"github.com/containerd/errdefs":          {"sandlot/internal/runtime/docker", "sandlot/internal/oci"},
	"github.com/opencontainers/runtime-spec": {"sandlot/internal/runtime/gvisor", "sandlot/cmd/sandlot-runsc",
		"sandlot/internal/runtime/microsandbox/msbtest", "sandlot/test/bench"},
}

// never lists what a package does not import, directly or through others.
var never = map[string][]string{
	// Nouns that everyone may use know nothing of those who do.
	"sandlot/internal/policy": {"sandlot/internal/tool", "sandlot/internal/session", "net/http"},
	"sandlot/internal/event":  {"sandlot/internal/auth", "sandlot/internal/session", "net/http"},
	"sandlot/internal/guest": {"sandlot/internal/agent", "sandlot/internal/session", "sandlot/internal/sandbox",
		"sandlot/internal/hub", "sandlot/internal/fault"},
	"sandlot/internal/tool": {"sandlot/internal/gateway", "github.com/modelcontextprotocol/go-sdk", "net/http"},
	"sandlot/internal/hub": {"github.com/modelcontextprotocol/go-sdk/mcp",
		"github.com/modelcontextprotocol/go-sdk/jsonrpc", "net/http/httptest"},
	"sandlot/internal/builtin": {"github.com/modelcontextprotocol/go-sdk/mcp", "sandlot/internal/gateway",
		"sandlot/internal/runtime"},
	// Clients and servers of the SDK lose what they do not know.
	"sandlot/internal/servers": {"github.com/modelcontextprotocol/go-sdk/mcp", "sandlot/internal/gateway",
		"sandlot/internal/store", "sandlot/internal/config"},
	"sandlot/internal/mcpclient": {"github.com/modelcontextprotocol/go-sdk/mcp", "sandlot/internal/session"},
	"sandlot/internal/session": {"sandlot/internal/runtime", "sandlot/internal/store", "sandlot/internal/gateway",
		"sandlot/internal/builtin"},
	"sandlot/internal/vault": {"sandlot/internal/store", "sandlot/internal/servers", "sandlot/internal/api",
		"sandlot/internal/session"},
	"sandlot/internal/egress": {"sandlot/internal/agent", "sandlot/internal/session", "sandlot/internal/config"},
	"sandlot/internal/port":   {"sandlot/internal/api", "sandlot/internal/store", "net/http"},
	// The vocabulary for counting tokens has megabytes, and is for tests alone.
	"sandlot/cmd/sandlot":       {"gvisor.dev/gvisor", "sandlot/internal/guest", "github.com/tiktoken-go/tokenizer"},
	"sandlot/cmd/sandlot-agent": {"github.com/tiktoken-go/tokenizer"},
	"sandlot/cmd/sandlot-runsc": {"github.com/tiktoken-go/tokenizer"},
}

func list(t *testing.T, format string, args ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-f", format}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

func below(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// sources yields what each package of ours imports on any system and with any build tag: its code, and with tests
// its tests too.
func sources(t *testing.T, tests bool) map[string]map[string]bool {
	t.Helper()
	of := map[string]map[string]bool{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata/") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", name), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		p := "sandlot/" + path.Dir(name)
		if of[p] == nil {
			of[p] = map[string]bool{}
		}
		if strings.HasSuffix(name, "_test.go") && !tests {
			continue
		}
		for _, i := range f.Imports {
			to, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			of[p][to] = true
		}
	}
	return of
}

// TestImports: only the packages of the table `only` import what it guards. Packages that only tests use may
// import packages for tests anywhere.
func TestImports(t *testing.T) {
	seen := 0
	for from, tos := range sources(t, false) {
		for to := range tos {
			seen++
			for guarded, allowed := range only {
				if !below(to, guarded) || below(from, guarded) || ofTests(from) && isForTests(to) {
					continue
				}
				// The wire is what both sides of a link share.
				if to == "sandlot/internal/agent/wire" {
					continue
				}
				if !slices.ContainsFunc(allowed, func(a string) bool { return below(from, a) }) {
					t.Errorf("%s imports %s, which is for %v alone", from, to, allowed)
				}
			}
		}
	}
	if seen < 1000 {
		t.Fatalf("only %d imports were found", seen)
	}
}

// isForTests reports whether the table of layers says that a package is for tests.
func isForTests(p string) bool {
	return places[strings.TrimPrefix(p, "sandlot/internal/")].layer == "test"
}

func TestDependencies(t *testing.T) {
	for p, forbidden := range never {
		for _, d := range list(t, "{{join .Deps \" \"}}", p) {
			for _, f := range forbidden {
				if below(d, f) && d != "sandlot/internal/agent/wire" {
					t.Errorf("%s depends on %s", p, d)
				}
			}
		}
	}
}
