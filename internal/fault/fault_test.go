package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The table of the specification's section "Faults".
func TestKinds(t *testing.T) {
	tests := []struct {
		kind                             Kind
		rpc                              int
		code, category, severity, prefix string
	}{
		{ResourceLimit, -32600, "RESOURCE_LIMIT_EXCEEDED", "resource", "high", "Resource limit exceeded: "},
		{Configuration, -32603, "CONFIGURATION_ERROR", "configuration", "high", "Configuration error: "},
		{SandboxCreation, -32603, "SANDBOX_CREATION_ERROR", "resource", "high", "Sandbox creation failed: "},
		{CodeExecution, -32603, "CODE_EXECUTION_ERROR", "execution", "medium", "Code execution failed: "},
		{CommandExecution, -32603, "COMMAND_EXECUTION_ERROR", "execution", "medium", "Command execution failed: "},
		{SessionNotFound, -32602, "SESSION_NOT_FOUND", "session", "low", "Session not found: "},
		{Connection, -32603, "CONNECTION_ERROR", "network", "high", "Connection error: "},
		{InvalidParameters, -32602, "INVALID_PARAMETERS", "validation", "low", ""},
	}
	for _, tt := range tests {
		t.Run(tt.code, func(t *testing.T) {
			e := New(tt.kind, "what %s", "happened").With("k", 1)
			if e.RPC() != tt.rpc || e.Code() != tt.code {
				t.Errorf("RPC %d, code %s", e.RPC(), e.Code())
			}
			if !strings.HasPrefix(e.Error(), tt.prefix) || !strings.HasSuffix(e.Error(), "what happened") {
				t.Errorf("message %q", e)
			}
			b, err := json.Marshal(e.Data())
			if err != nil {
				t.Fatal(err)
			}
			var d map[string]any
			if err := json.Unmarshal(b, &d); err != nil {
				t.Fatal(err)
			}
			if d["error_code"] != tt.code || d["category"] != tt.category || d["severity"] != tt.severity {
				t.Errorf("data %s", b)
			}
			if s, ok := d["recovery_suggestions"].([]any); !ok || len(s) == 0 {
				t.Errorf("no recovery suggestions in %s", b)
			}
			if c, ok := d["context"].(map[string]any); !ok || c["k"] != 1.0 {
				t.Errorf("context in %s", b)
			}
		})
	}
}

func TestEveryKindHasARow(t *testing.T) {
	codes := map[string]Kind{}
	for k := Internal; k <= Canceled; k++ {
		e := New(k, "x")
		if e.Code() == "" || e.RPC() >= 0 || e.HTTP() < 400 || e.HTTP() > 599 {
			t.Errorf("kind %d: code %q, RPC %d, HTTP %d", k, e.Code(), e.RPC(), e.HTTP())
		}
		if other, twice := codes[e.Code()]; twice {
			t.Errorf("kinds %d and %d are both %s", other, k, e.Code())
		}
		codes[e.Code()] = k
	}
	if len(codes) != len(kinds) {
		t.Errorf("%d rows for %d kinds", len(kinds), len(codes))
	}
}

func TestDataIsWholeWithoutContext(t *testing.T) {
	b, _ := json.Marshal(New(Internal, "x").Data())
	if !strings.Contains(string(b), `"context":{}`) {
		t.Errorf("data %s, want an empty object as context", b)
	}
}

func TestFrom(t *testing.T) {
	own := New(SessionNotFound, "abc")
	tests := []struct {
		name string
		err  error
		want Kind
	}{
		{"a fault", own, SessionNotFound},
		{"a wrapped fault", fmt.Errorf("opening: %w", own), SessionNotFound},
		{"cancelled", fmt.Errorf("reading: %w", context.Canceled), Canceled},
		{"too late", fmt.Errorf("reading: %w", context.DeadlineExceeded), Connection},
		{"a fault over a cancelled context", Wrap(ResourceLimit, context.Canceled, "full"), ResourceLimit},
		{"any other", errors.New("/etc/secret is broken"), Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := From(tt.err)
			if got.Kind != tt.want {
				t.Errorf("From = %v, want kind %d", got, tt.want)
			}
		})
	}
}

// The user sees the message, the operator the chain.
func TestTheCauseIsHidden(t *testing.T) {
	cause := errors.New("dial unix /var/lib/sandlot/x.sock")
	for _, e := range []*Error{Wrap(Connection, cause, "the sandbox does not answer"), From(cause)} {
		b, _ := json.Marshal(e.Data())
		if strings.Contains(e.Error()+string(b), "/var/lib") {
			t.Errorf("%s %s shows the cause", e, b)
		}
		if !errors.Is(e, cause) {
			t.Errorf("%s lost its cause", e)
		}
	}
}

func TestIs(t *testing.T) {
	err := fmt.Errorf("a: %w", New(NotFound, "b"))
	if !Is(err, NotFound) || Is(err, FileAccess) || Is(errors.New("x"), Internal) || Is(nil, Internal) {
		t.Error("Is is wrong")
	}
}

// The context of a fault has all that its kind promises, null where it is not known.
func TestContextIsWhole(t *testing.T) {
	for kind, names := range map[Kind][]string{ResourceLimit: {"resource_type", "current_usage", "limit"},
		CodeExecution:    {"template", "session_id", "error_type"},
		CommandExecution: {"command", "exit_code", "session_id"}} {
		e := New(kind, "x").With("session_id", "s").With("more", 1)
		c := e.Data().Context
		for _, name := range names {
			if _, there := c[name]; !there {
				t.Errorf("%v has no %s", kind, name)
			}
		}
		if c["session_id"] != "s" || c["more"] != 1 || len(e.Context) != 2 {
			t.Errorf("%v: %v, %v", kind, c, e.Context)
		}
	}
	if c := New(NotFound, "x").Data().Context; c == nil || len(c) > 0 {
		t.Errorf("%v", c)
	}
}
