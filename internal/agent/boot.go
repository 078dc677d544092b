package agent

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path"
	"slices"

	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
)

// Environment is what a runtime starts the agent with: the template's
// variables, and the agent's own, which it removes before it starts anything.
// With brokered, the sandbox has no network but what the agent leads to the host.
func Environment(s sandbox.Spec, brokered bool) ([]string, error) {
	c := Configure(s.Template, s.Limits)
	for _, m := range s.Mounts {
		c.FileRoots = append(c.FileRoots, &agentv1.FileRoot{Path: m.Target, ReadOnly: m.ReadOnly})
	}
	boot, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Boot{Configure: c, Warm: s.Template.Warm, Network: brokered}) // runtimes compare it
	if err != nil {
		return nil, fmt.Errorf("what the agent is told at its start: %w", err)
	}
	var env []string
	for k, v := range s.Template.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	if s.Orphan > 0 {
		env = append(env, wire.EnvOrphan+"="+s.Orphan.String())
	}
	return append(env, wire.EnvSecret+"="+hex.EncodeToString(s.Secret), wire.EnvSocket+"="+path.Join(wire.SocketDir, wire.Socket),
		wire.EnvBoot+"="+base64.StdEncoding.EncodeToString(boot)), nil
}

// Configure returns what an agent is told of its template and limits, without
// file roots.
func Configure(t *image.Template, l sandbox.Limits) *agentv1.ConfigureRequest {
	c := &agentv1.ConfigureRequest{Env: t.Env,
		Limits: &agentv1.Limits{MemoryBytes: uint64(l.MemoryBytes), Processes: uint64(l.Processes), DiskBytes: uint64(l.DiskBytes)}}
	for _, l := range t.Languages {
		c.Languages = append(c.Languages, &agentv1.Language{Name: l.Name, Driver: l.Driver, Command: l.Command, Extension: l.Extension})
	}
	return c
}
