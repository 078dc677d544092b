package agent

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path"
	"slices"

	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
)

// Environment returns the environment that a runtime starts the agent with: the template's
// variables, and the agent's own, which the agent removes before it starts programs. Brokered
// says that the runtime gives the sandbox no network: the agent passes all connections to the
// host.
func Environment(s sandbox.Spec, brokered bool) ([]string, error) {
	c := Settings{Template: s.Template, Limits: s.Limits}
	for _, m := range s.Mounts {
		c.Roots = append(c.Roots, FileRoot{Path: m.Target, ReadOnly: m.ReadOnly})
	}
	// It has to be deterministic: a runtime compares it to find out whether a prebooted sandbox fits.
	boot, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Boot{Configure: c.message(),
		Warm: s.Template.Warm, Network: brokered})
	if err != nil {
		return nil, fmt.Errorf("the agent's settings: %w", err)
	}
	var env []string
	for k, v := range s.Template.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	if s.OrphanTimeout > 0 {
		env = append(env, wire.EnvOrphan+"="+s.OrphanTimeout.String())
	}
	return append(env, wire.EnvSecret+"="+hex.EncodeToString(s.Secret), wire.EnvSocket+"="+
		path.Join(wire.SocketDir, wire.Socket),
		wire.EnvBoot+"="+base64.StdEncoding.EncodeToString(boot)), nil
}
