// Package guest is the program inside every sandbox: it owns the processes, the
// interpreters and their output, and does what the host asks over the link. It
// survives the loss of the host, and dials again until there is one.
package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/files"
	"sandlot/internal/guest/interp"
	"sandlot/internal/guest/network"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// Config is what the agent is told when it boots.
type Config struct {
	Socket string
	Secret []byte
	Boot   *agentv1.Boot
	Env    []string // of everything that it starts
	// Init: this is the first process of the sandbox.
	Init bool
	// Orphan is how long to live without a host; 0 is for ever. The clock does not
	// go by the time of day.
	Orphan time.Duration
}

// FromEnvironment reads the configuration and removes it from the environment.
func FromEnvironment() (Config, error) {
	secret, err := hex.DecodeString(os.Getenv(wire.EnvSecret))
	if err != nil || len(secret) != wire.SecretLen {
		return Config{}, fmt.Errorf("%s must be %d bytes in hexadecimal", wire.EnvSecret, wire.SecretLen)
	}
	c := Config{Socket: os.Getenv(wire.EnvSocket), Secret: secret, Boot: new(agentv1.Boot), Init: os.Getpid() == 1}
	if c.Socket == "" {
		c.Socket = wire.SocketDir + "/" + wire.Socket
	}
	boot, err := base64.StdEncoding.DecodeString(os.Getenv(wire.EnvBoot))
	if err = errors.Join(err, proto.Unmarshal(boot, c.Boot)); err != nil {
		return Config{}, fmt.Errorf("%s: %w", wire.EnvBoot, err)
	}
	if v := os.Getenv(wire.EnvOrphan); v != "" {
		if c.Orphan, err = time.ParseDuration(v); err != nil {
			return Config{}, fmt.Errorf("%s: %w", wire.EnvOrphan, err)
		}
	}
	for _, name := range []string{wire.EnvSecret, wire.EnvSocket, wire.EnvBoot, wire.EnvOrphan} {
		os.Unsetenv(name)
	}
	c.Env = os.Environ()
	return c, nil
}

// Main runs the agent as the first process of a sandbox.
func Main() int {
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(1)
	// The memory of the boot is given back once there is time for that.
	time.AfterFunc(rested, debug.FreeOSMemory)
	// Programs gain nothing by executing a setuid file, and cannot read this process's
	// memory.
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	c, err := FromEnvironment()
	if err == nil {
		err = keepCapabilities()
	}
	if err == nil {
		err = New(c).Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "sandlot-agent:", err)
	return 1
}

// rested is when a sandbox has booted, and most likely idles.
const rested = 3 * time.Second

// keepCapabilities keeps this process's capabilities from all that it starts: a
// program that root executes has the bounding set, which is empty from now on.
// The agent keeps its own, as it sets up the network again after a restore.
func keepCapabilities() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno != 0 && errno != unix.EINVAL && errno != unix.EPERM {
			return fmt.Errorf("dropping capability %d: %w", c, errno)
		}
	}
	return nil
}

// unimplemented answers the calls that neither Agent nor an embedded type answers.
type unimplemented struct {
	agentv1connect.UnimplementedAgentHandler
}

// Agent serves the wire. Files answers the calls on files, Processes most of those on
// processes.
type Agent struct {
	unimplemented
	*files.Files
	*process.Processes
	config  Config
	output  *outputFiles
	calls   chan net.Conn
	network atomic.Pointer[network.Network] // nil where the sandbox has one of its own
	work    sync.WaitGroup

	mu        sync.Mutex
	secret    []byte
	bootID    string
	env       map[string]string
	languages []*agentv1.Language
	interps   map[string]*interp.Interp
	active    int
	used      time.Time
}

// New returns an agent that does nothing yet.
func New(c Config) *Agent {
	a := &Agent{config: c, secret: c.Secret, bootID: newBootID(), output: newOutputFiles(), calls: make(chan net.Conn),
		env: map[string]string{}, interps: map[string]*interp.Interp{}, used: time.Now()}
	for _, kv := range c.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			a.env[k] = v
		}
	}
	a.Files = files.New(func() string { return a.variables(nil)["PYTHONUSERBASE"] })
	a.Processes = &process.Processes{Reaper: process.NewReaper(c.Init), Dir: a.Base, Env: a.environment, Ended: a.touch,
		Enforcer: process.NewEnforcer(a.lately, a.blame)}
	if boot := c.Boot.GetConfigure(); boot != nil {
		if err := a.configure(boot); err != nil {
			fmt.Fprintln(os.Stderr, "sandlot-agent:", err) // the host gets the error when it configures
		}
	}
	return a
}

func newBootID() string {
	id := make([]byte, 8)
	unix.Getrandom(id, 0)
	return hex.EncodeToString(id)
}

// Run serves until ctx ends, or there was no host for Config.Orphan. Then it kills every
// process that it started.
func (a *Agent) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	if a.config.Init {
		h := a.home()
		h.prepare(pythons(a.table()))
		// The local user, until the host configures another.
		h.git(&agentv1.Identity{Name: "local", Email: "local@sandlot.invalid"})
	}
	stop := make(chan struct{})
	a.work.Go(func() { a.Reaper.Run(stop) })
	a.work.Go(func() { a.Enforcer.Run(stop) })
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentHandler(a, connect.WithReadMaxBytes(wire.MaxMessage),
		connect.WithSendMaxBytes(wire.MaxMessage)))
	server := &http.Server{Handler: mux}
	a.work.Go(func() { server.Serve(&wire.Listener{Conns: a.calls, Closed: ctx.Done()}) })
	for _, name := range a.config.Boot.GetWarm() {
		a.work.Go(func() {
			if l, err := a.language(name); err == nil && l.Driver != "" {
				_ = a.interpreter(l).Warm(ctx) // whoever uses it starts it again, and is told
			}
		})
	}
	if a.config.Init && a.config.Boot.GetNetwork() {
		a.work.Go(func() {
			n := network.New(a.dialNet, func() { a.notify(true) })
			a.network.Store(n)
			if err := n.Start(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "sandlot-agent: the network:", err)
			}
			n.Wait(ctx)
		})
	}
	orphaned := a.stayLinked(ctx)
	if orphaned && a.config.Init { // whatever may hang below
		time.AfterFunc(10*time.Second, func() { os.Exit(1) })
	}
	end()
	server.Close()
	a.mu.Lock()
	interps := slices.Collect(maps.Values(a.interps))
	a.mu.Unlock()
	for _, i := range interps {
		i.Close()
	}
	a.Processes.Close()
	close(stop)
	a.work.Wait()
	if orphaned {
		return ErrOrphaned
	}
	return ctx.Err()
}

// stayLinked links the agent to one host after the other until ctx ends, or until
// there was no host for too long; then it returns true.
func (a *Agent) stayLinked(ctx context.Context) (orphaned bool) {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, wire.Wake)
	defer signal.Stop(woken)
	var again redial
	for lost := time.Now(); ctx.Err() == nil; {
		if a.renew() {
			lost = time.Now() // how long the original had no host says nothing
		}
		began := time.Now()
		end := a.link(ctx)
		if end == linkBroke {
			lost = time.Now()
			if a.renew() {
				continue // a copy's link is broken from the beginning
			}
		} else if a.config.Orphan > 0 && time.Since(lost) > a.config.Orphan {
			return true
		}
		select {
		case <-time.After(again.pause(end, time.Since(began), time.Since(lost))):
		case <-woken:
		case <-ctx.Done():
		}
	}
	return false
}

// ErrOrphaned is returned by Run when there was no host for Config.Orphan.
var ErrOrphaned = errors.New("there was no server for too long")

// renew makes this the agent of another sandbox, when its sandbox is a copy of the one
// in which it booted: the host has put a new secret beside the socket. The settings of
// the network that the kernel does not keep are made again.
func (a *Agent) renew() bool {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(a.config.Socket), wire.SecretFile))
	if err != nil {
		return false
	}
	secret, err := hex.DecodeString(string(text))
	if err != nil || len(secret) != wire.SecretLen || bytes.Equal(secret, a.proof()) {
		return false
	}
	if n := a.network.Load(); n != nil {
		if err := n.Redirect(); err != nil {
			fmt.Fprintln(os.Stderr, "sandlot-agent: the network:", err)
		}
	}
	a.home().folders() // the copy has another workspace
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secret, a.bootID, a.used = secret, newBootID(), time.Now()
	return true
}

func (a *Agent) proof() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secret
}

// link serves one connection to the host until it breaks, and says how it ended.
func (a *Agent) link(ctx context.Context) linkEnd {
	c, err := net.Dial("unix", a.config.Socket)
	if err != nil {
		return nobodyThere
	}
	if wire.Greet(c, a.proof()) != nil {
		c.Close()
		return linkRefused
	}
	mux, err := yamux.Server(wire.Coalesce(c), wire.AgentMux())
	if err != nil {
		c.Close()
		return linkRefused
	}
	stop := context.AfterFunc(ctx, func() { mux.Close() })
	defer stop()
	defer mux.Close()
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			return linkBroke
		}
		a.work.Go(func() { a.dispatch(ctx, s) })
	}
}

// dialNet makes a connection to the host for the network.
func (a *Agent) dialNet(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", a.config.Socket)
	if err != nil {
		return nil, err
	}
	if err := wire.GreetNet(c, a.proof()); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialDirect makes a connection that the host gave a ticket for, as a file for
// a program, which finds it as it would find a pipe.
func (a *Agent) dialDirect(ticket []byte) (*os.File, error) {
	if len(ticket) != wire.SecretLen {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "the ticket of a connection has a wrong length")
	}
	c, err := net.Dial("unix", a.config.Socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := wire.GreetDirect(c, wire.Ticket(ticket)); err != nil {
		return nil, err
	}
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dispatch serves a stream by its kind.
func (a *Agent) dispatch(ctx context.Context, s *yamux.Stream) {
	var kind [1]byte
	if _, err := s.Read(kind[:]); err != nil {
		s.Close()
		return
	}
	switch kind[0] {
	case wire.Call:
		select {
		case a.calls <- s:
		case <-ctx.Done():
			s.Close()
		}
	case wire.Run:
		a.runs(ctx, s)
		s.Close()
	case wire.Raw:
		defer a.activity()()
		a.raw(s)
		s.Close()
	default:
		s.Close()
	}
}

// activity counts a call as active, until the function that it returns is called.
func (a *Agent) activity() func() {
	a.mu.Lock()
	a.active++
	a.mu.Unlock()
	a.Enforcer.CheckSoon()
	return func() {
		a.mu.Lock()
		a.active--
		a.used = time.Now()
		a.mu.Unlock()
	}
}

func (a *Agent) touch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = time.Now()
}

// lately says whether a call runs, or ended just now.
func (a *Agent) lately() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.active > 0 || time.Since(a.used) < process.CheckIdle
}

// blame records which limit ended these processes, for the calls that started them.
func (a *Agent) blame(pids map[int]bool, limit string) {
	a.Processes.Blame(pids, limit)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range a.interps {
		if pids[i.PID()] {
			i.Blame(limit)
		}
	}
}

// home is the home of all programs of this sandbox.
func (a *Agent) home() home {
	a.mu.Lock()
	defer a.mu.Unlock()
	return home{root: "/", env: maps.Clone(a.env)}
}

// table returns the languages.
func (a *Agent) table() []*agentv1.Language {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.languages
}

// environment is the template's, the session's and the call's; without colours for
// programs whose output no terminal shows.
func (a *Agent) environment(call map[string]string, noColor bool) []string {
	env := a.variables(call)
	if noColor {
		quiet(env)
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

func (a *Agent) variables(call map[string]string) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	env := maps.Clone(a.env)
	maps.Copy(env, call)
	return env
}

// Hello implements the wire.
func (a *Agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &agentv1.HelloResponse{BootId: a.bootID}, nil
}

// Configure implements the wire.
func (a *Agent) Configure(_ context.Context, r *agentv1.ConfigureRequest) (*agentv1.ConfigureResponse, error) {
	return &agentv1.ConfigureResponse{}, a.configure(r)
}

func (a *Agent) configure(m *agentv1.ConfigureRequest) error {
	if err := a.SetRoots(m.FileRoots); err != nil {
		return err
	}
	if l := m.Limits; l != nil {
		a.Enforcer.Set(l)
		a.Reaper.SetLimit(l.Processes)
	}
	if m.Git != nil && a.config.Init {
		a.home().git(m.Git)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.env, m.Env)
	a.languages = m.Languages
	return nil
}

// Usage implements the wire.
func (a *Agent) Usage(context.Context, *agentv1.UsageRequest) (*agentv1.UsageResponse, error) {
	u := a.Enforcer.Usage()
	busy := a.Processes.Busy()
	a.mu.Lock()
	defer a.mu.Unlock()
	u.IdleMicros = uint64(time.Since(a.used).Microseconds())
	u.Busy = busy || a.active > 0
	return u, nil
}

// ListProcesses implements the wire.
func (a *Agent) ListProcesses(context.Context, *agentv1.ListProcessesRequest) (*agentv1.ListProcessesResponse, error) {
	return &agentv1.ListProcessesResponse{Processes: append(a.List(), a.interpreters()...)}, nil
}

// StopProcess implements the wire.
func (a *Agent) StopProcess(ctx context.Context, r *agentv1.StopProcessRequest) (*agentv1.StopProcessResponse, error) {
	if i := a.named(r.ProcessId); i != nil {
		return stopInterpreter(ctx, i, syscall.Signal(r.Signal)), nil
	}
	return a.Processes.StopProcess(ctx, r)
}
