package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
)

// Settings are the settings of an agent. Configure may send them more than once; the last ones count.
type Settings struct {
	Template *image.Template // its languages, and its variables for all programs that start from now on
	Limits   sandbox.Limits
	// Roots are the folders that file calls may access. The first is the default working
	// directory of programs, and relative paths are relative to it.
	Roots []FileRoot
	Git   *Identity // nil: unchanged
	Bound *Bound    // nil: unchanged
	// Variables are the session's, which replace the last ones, also in interpreters that run; nil: unchanged.
	Variables map[string]string
	// Renew says that the sandbox is a copy of another one: interpreters get new random numbers, or, if they cannot,
	// start again.
	Renew bool
}

// Bound is what stands in a sandbox for secrets that only the server has.
type Bound struct {
	Env map[string]string // replaces that of the last Bound, also in interpreters that run
	// CA is a certificate in PEM that programs are to trust; empty: none. Bundles are the paths of files with all
	// certificates, to which it is added, and Files are further files that have it, by path.
	CA      []byte
	Bundles []string
	Files   map[string][]byte
	// Java is a trust store with the certificate, which replaces those at the paths JavaStores.
	Java       []byte
	JavaStores []string
}

// FileRoot is a folder of the sandbox that file calls may access.
type FileRoot struct {
	Path     string
	ReadOnly bool
}

// Identity is the author of commits where Git has no other setting.
type Identity struct{ Name, Email string }

func (s Settings) message() *agentv1.ConfigureRequest {
	l := s.Limits
	m := &agentv1.ConfigureRequest{Env: variables(s.Template, s.Limits.CPUs),
		Limits: &agentv1.Limits{MemoryBytes: uint64(l.MemoryBytes), Processes: uint64(l.Processes),
			DiskBytes: uint64(l.DiskBytes)}}
	for _, r := range s.Roots {
		m.FileRoots = append(m.FileRoots, &agentv1.FileRoot{Path: r.Path, ReadOnly: r.ReadOnly})
	}
	for _, l := range s.Template.Languages {
		m.Languages = append(m.Languages, &agentv1.Language{Name: l.Name, Driver: l.Driver, Command: l.Command,
			Extension: l.Extension})
	}
	if s.Git != nil {
		m.Git = &agentv1.Identity{Name: s.Git.Name, Email: s.Git.Email}
	}
	if b := s.Bound; b != nil {
		m.Bound = &agentv1.Bound{Env: b.Env, Ca: b.CA, Bundles: b.Bundles, Files: b.Files,
			Java: b.Java, JavaStores: b.JavaStores}
	}
	m.Renew = s.Renew
	if s.Variables != nil {
		m.Variables = &agentv1.Variables{Env: s.Variables}
	}
	return m
}

// Configure sends the agent its settings.
func (c *Client) Configure(ctx context.Context, s Settings) error {
	if s.Bound != nil || s.Variables != nil {
		defer c.closeDirect()()
	}
	m, err := call(ctx, c.rpc.Configure, s.message())
	if err == nil && s.Renew && !m.Renewed {
		err = errors.New("the agent is of an earlier version of Sandlot, which does not renew random numbers")
	}
	return err
}

// closeDirect closes the direct connections to drivers: only a driver without one hears the agent, which sets its
// variables. Those that run a cell are closed after it. The function that it returns lets cells run again.
func (c *Client) closeDirect() (open func()) {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.interps))
	c.mu.Unlock()
	var held, opened []*interpreter
	for _, i := range all {
		select {
		case i.slot <- struct{}{}:
			held = append(held, i)
			if i.conn != nil {
				opened = append(opened, i)
			}
			i.closeConn()
		default:
			c.spawn(func() {
				if c.acquireInterpreter(c.ctx, i, nil) == nil {
					i.closeConn()
					c.freeInterpreter(i)
				}
			})
		}
	}
	return func() {
		for _, i := range held {
			c.freeInterpreter(i)
		}
		for _, i := range opened {
			c.Prepare(i.language)
		}
	}
}

// Hello returns the boot id, which the agent makes at random when it starts. The call also shows
// that the agent answers.
func (c *Client) Hello(ctx context.Context) (bootID string, err error) {
	m, err := call(ctx, c.rpc.Hello, &agentv1.HelloRequest{})
	if err != nil {
		return "", err
	}
	return line(m.BootId, 100), nil
}

// StartInterpreter starts a language's interpreter, before there is a cell for it.
func (c *Client) StartInterpreter(ctx context.Context, language string) error {
	_, err := call(ctx, c.rpc.StartInterpreter, &agentv1.StartInterpreterRequest{Language: language})
	return err
}

// Usage is the use of resources of a sandbox, as its agent reports it.
type Usage struct {
	MemoryBytes uint64
	CPU         time.Duration
	DiskBytes   uint64 // of the writable root file system
	Processes   int
	Busy        bool          // a call or a background process runs
	Idle        time.Duration // since the end of the last call or background process
	Attached    bool          // a call runs, or a process whose streams the host has
	// Quiet is how long ago a program listened for connections, or used the processor without a call. Of an agent that
	// does not know it: 0 while Busy, else Idle.
	Quiet time.Duration
	// Network is how programs reach the network: redirected by "iptables" or "nftables", or by a "proxy". Empty: the
	// runtime gives the sandbox a network.
	Network string
}

// Usage asks the agent for the sandbox's usage.
func (c *Client) Usage(ctx context.Context) (Usage, error) {
	m, err := call(ctx, c.rpc.Usage, &agentv1.UsageRequest{})
	if err != nil {
		return Usage{}, err
	}
	if m.Processes > maxProcesses || m.MemoryBytes > maxUsedBytes || m.DiskBytes > maxUsedBytes {
		return Usage{}, ErrProtocol
	}
	u := Usage{MemoryBytes: m.MemoryBytes, CPU: duration(m.CpuMicros, time.Microsecond), DiskBytes: m.DiskBytes,
		Processes: int(m.Processes), Busy: m.Busy, Idle: duration(m.IdleMicros, time.Microsecond),
		Attached: m.Attached, Network: known(m.Network, "iptables", "nftables", "proxy")}
	switch {
	case m.QuietMicros != nil:
		u.Quiet = duration(*m.QuietMicros, time.Microsecond)
	case !u.Busy:
		u.Quiet = u.Idle
	}
	return u, nil
}
