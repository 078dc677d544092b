package servers

import (
	"encoding/json"
	"testing"
	"time"

	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Clients of the HTTP API see flat objects, whatever Go makes of them.
func TestInfoIsFlat(t *testing.T) {
	i := Info{ID: "a", Name: "n", Configured: true, Kind: spec.Stdio, Where: spec.OnHost, Command: "c",
		Args: []string{"x"}, Cwd: "/", URL: "u", EnvKeys: []string{"K"}, Secrets: []string{"s"},
		Created: time.Unix(0, 0).UTC(), Updated: time.Unix(1, 0).UTC(), State: state.Idle, LastError: "e", AuthURL: "l",
		Install: &spec.Install{}}
	i.Version, i.Server = "v", json.RawMessage(`{}`)
	i.Tools, i.Held, i.Prompts, i.Resources = []Named{{}}, []Named{{}}, 1, 2
	i.Restarts, i.Calls, i.P50, i.P95 = 3, 4, 5, 6
	b, err := json.Marshal(i)
	const want = `{"id":"a","name":"n","configured":true,"transport":"stdio","where":"host","command":"c","args":["x"],` +
		`"cwd":"/","url":"u","envKeys":["K"],"secrets":["s"],"createdAt":"1970-01-01T00:00:00Z",` +
		`"updatedAt":"1970-01-01T00:00:01Z","state":"idle","lastError":"e","authUrl":"l","protocolVersion":"v",` +
		`"serverInfo":{},"install":{"type":"","spec":"","folder":""},"restarts":3,"calls":4}`
	if string(b) != want || err != nil {
		t.Errorf("%s %v", b, err)
	}
}
