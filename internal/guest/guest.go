// Package guest is the agent, the program inside every sandbox. It owns the processes, the
// interpreters and their output, and answers the host's calls over the link. When the host
// is gone it keeps them, and dials until there is a host again.
package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"unsafe"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/confine"
	"sandlot/internal/guest/files"
	"sandlot/internal/guest/interp"
	"sandlot/internal/guest/network"
	"sandlot/internal/guest/process"
	"sandlot/internal/guest/tools"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// Config is the configuration of an agent.
type Config struct {
	Socket string // the path of the host's socket; the file with the secret is beside it
	// Carry dials the host; nil: the agent dials Socket. All connections are carried over the stream.
	Carry  func(context.Context) (io.ReadWriteCloser, error)
	Secret []byte
	Boot   *agentv1.Boot
	Env    []string // the variables of all programs that the agent starts
	// Capable: programs of root keep wire.Capabilities.
	Capable bool
	// User is the user of the sandbox, and Workdir where programs start; empty: in the first root.
	User    *user.User
	Workdir string
	// ToolsDir is the folder of the tool tree; empty: there is none.
	ToolsDir string
	// Init is set when the agent is the first process of the sandbox.
	Init bool
	// OrphanTimeout is how long the agent runs without a host; 0: for ever. It is measured with
	// the monotonic clock.
	OrphanTimeout time.Duration
}

// FromEnvironment reads the configuration and removes it from the environment.
func FromEnvironment() (Config, error) {
	c := Config{Socket: os.Getenv(wire.EnvSocket), Boot: new(agentv1.Boot), ToolsDir: wire.ToolsDir,
		Init: os.Getpid() == 1, Capable: os.Getenv(wire.EnvCapable) != ""}
	var err error
	if c.Carry, err = carrierOf(c.Socket); err != nil {
		return Config{}, fmt.Errorf("%s: %w", wire.EnvSocket, err)
	}
	if c.Socket == "" || c.Carry != nil {
		c.Socket = wire.SocketDir + "/" + wire.Socket
	}
	text := []byte(os.Getenv(wire.EnvSecret))
	if len(text) == 0 { // others can read the environment of a container
		text, _ = os.ReadFile(filepath.Join(filepath.Dir(c.Socket), wire.SecretFile))
	}
	if c.Secret, err = hex.DecodeString(string(text)); err != nil || len(c.Secret) != wire.SecretLen {
		return Config{}, fmt.Errorf("%s, or else the file %s beside the socket, must be %d bytes in hexadecimal",
			wire.EnvSecret, wire.SecretFile, wire.SecretLen)
	}
	boot, err := base64.StdEncoding.DecodeString(os.Getenv(wire.EnvBoot))
	if err = errors.Join(err, proto.Unmarshal(boot, c.Boot)); err != nil {
		return Config{}, fmt.Errorf("%s: %w", wire.EnvBoot, err)
	}
	who, err := wire.ParseUser(os.Getenv(wire.EnvUser))
	if err != nil {
		return Config{}, err
	}
	c.Workdir = who.Workdir
	if c.User, err = user.New(who.UID, who.GID, who.Groups, who.Name, who.Home); err != nil {
		return Config{}, err
	}
	if v := os.Getenv(wire.EnvOrphan); v != "" {
		if c.OrphanTimeout, err = time.ParseDuration(v); err != nil {
			return Config{}, fmt.Errorf("%s: %w", wire.EnvOrphan, err)
		}
	}
	var programs []string
	for _, kv := range os.Environ() { // others of these names are the image's
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, wire.EnvPrefix) || slices.Contains(wire.GoVariables, name) {
			os.Unsetenv(name)
		}
		if kv, ok := strings.CutPrefix(kv, wire.EnvProgram); ok {
			programs = append(programs, kv)
		}
	}
	c.Env = append(os.Environ(), programs...)
	return c, nil
}

// Main runs the agent as the first process of a sandbox.
func Main() int {
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(1)
	// Return the memory that only the start needed.
	time.AfterFunc(freeMemoryDelay, debug.FreeOSMemory)
	// A setuid file gives programs no privileges, and they cannot read this process's memory.
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err := readEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent:", err)
		return 1
	}
	plainFiles, enclosed := os.Getenv(wire.EnvPlainFiles) != "", os.Getenv(wire.EnvEnclosed) != ""
	var kept []uintptr
	if os.Getenv(wire.EnvCapable) != "" {
		kept = slices.Collect(maps.Values(wire.Capabilities))
	}
	c, err := FromEnvironment()
	if err == nil {
		err = dropBoundingSet(kept)
	}
	if err == nil && plainFiles {
		err = confine.PlainFiles()
	}
	if err == nil && enclosed {
		err = confine.Enclose()
	}
	if err == nil {
		err = c.User.Do(func() error { return nil })
	}
	if err == nil {
		err = New(c).Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "sandlot-agent:", err)
	return 1
}

// freeMemoryDelay is how long after its start the agent has booted, and is most likely idle.
const freeMemoryDelay = 3 * time.Second

// dropBoundingSet makes the programs that this process starts have no other capabilities: a program
// that root executes gets those of the bounding set, which has only kept from now on. The agent
// keeps its own capabilities, since it sets up the network again after a restore.
func dropBoundingSet(kept []uintptr) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(kept, c) {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno == 0 || errno == unix.EINVAL { // EINVAL: the kernel does not know it
			continue
		}
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil || has != 0 {
			return fmt.Errorf("programs would get capability %d, and it cannot be dropped: %w; the agent needs "+
				"CAP_SETPCAP", c, errno)
		}
	}
	return clearInheritable()
}

// clearInheritable clears the inheritable set, which some versions of Docker fill, and with it the
// ambient one: a program gets those of a file's inheritable set, whatever the bounding set is.
func clearInheritable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData
	if err := unix.Capget(&header, &own[0]); err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	if own[0].Inheritable|own[1].Inheritable == 0 { // then the ambient set is empty, too
		return nil
	}
	own[0].Inheritable, own[1].Inheritable = 0, 0
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&own[0])), 0)
	if errno != 0 {
		return fmt.Errorf("clearing the inheritable capabilities: %w", errno)
	}
	return nil
}

// unimplemented answers the RPCs that neither Agent nor its other embedded types implement.
type unimplemented struct {
	agentv1connect.UnimplementedAgentHandler
}

// Agent answers the host. Files implements the RPCs about files, Processes most of those about
// processes.
type Agent struct {
	unimplemented
	*files.Files
	*process.Processes
	outward
	config      Config
	user        *user.User
	output      *outputFiles
	carried     carried
	callStreams chan net.Conn // Call streams, for the HTTP server
	work        sync.WaitGroup
	// workdirFound: the folder where programs start was there.
	workdirFound atomic.Bool
	boundMu      sync.Mutex // held while bound secrets and variables of the session are applied

	mu          sync.Mutex
	secret      []byte
	bootID      string
	env         map[string]string
	bound       map[string]string // variables for bound secrets, which replace those of env
	session     map[string]string // variables of the session, which replace all of these
	languages   []*agentv1.Language
	interps     map[string]*interp.Interp // by interpreterName
	activeCalls int                       // calls that run now
	lastUsed    time.Time                 // when a call or process last ended
}

// outward are the ways out of the sandbox, over the host.
type outward struct {
	network atomic.Pointer[network.Network] // nil: the runtime gives the sandbox a network
	tools   *tools.Tools
}

// New returns an agent. Run starts it.
func New(c Config) *Agent {
	a := &Agent{config: c, user: c.User, secret: c.Secret, bootID: newBootID(), output: newOutputFiles(c.User),
		callStreams: make(chan net.Conn),
		env:         map[string]string{}, interps: map[string]*interp.Interp{}, lastUsed: time.Now()}
	for _, kv := range c.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			a.env[k] = v
		}
	}
	a.Files = files.New(func() string { return a.variables(nil)["PYTHONUSERBASE"] }, c.User)
	a.Processes = &process.Processes{Reaper: process.NewReaper(c.Init, c.User), Dir: a.workingFolder,
		Env: a.environment, OnEnded: a.markUsed, User: c.User,
		Enforcer: process.NewEnforcer(a.recentlyActive, a.recordKill)}
	a.Activity.LastUsed = a.callsEnded
	a.tools = tools.New(tools.Config{Dir: c.ToolsDir, Shared: wire.SharedTools, Dial: a.dialTools, Whose: a.whose,
		Begin: a.beginCall})
	if boot := c.Boot.GetConfigure(); boot != nil {
		if err := a.configure(boot); err != nil {
			fmt.Fprintln(os.Stderr, "sandlot-agent:", err) // Configure returns the error to the host later
		}
	}
	return a
}

func newBootID() string {
	id := make([]byte, 8)
	unix.Getrandom(id, 0)
	return hex.EncodeToString(id)
}

// Run serves until ctx ends, or there was no host for Config.OrphanTimeout. Then it kills every
// process that it started.
func (a *Agent) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	if a.config.Init {
		h := a.home()
		h.takeFolders(a.Base(), a.output.dir)
		python := pythonPrograms(a.languageTable())
		h.prepare(python)
		if a.config.ToolsDir != "" && os.Getenv(wire.EnvBuild) == "" { // else it would be in the template's image
			h.linkTools(python)
			h.addSudo()
			h.addPip()
			h.keepServicesStopped()
		}
		// The local user, until the host configures another.
		h.configureGit(&agentv1.Identity{Name: "local", Email: "local@sandlot.invalid"})
	}
	if a.config.Init && a.config.Boot.GetNetwork() {
		a.startNetwork(ctx)
	}
	stop := make(chan struct{})
	a.work.Go(func() { a.Reaper.Run(stop) })
	a.work.Go(func() { a.Enforcer.Run(stop) })
	a.work.Go(func() { a.Activity.Run(stop) })
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentHandler(a, connect.WithReadMaxBytes(wire.MaxMessage),
		connect.WithSendMaxBytes(wire.MaxMessage)))
	server := &http.Server{Handler: mux}
	a.work.Go(func() { server.Serve(&wire.Listener{Conns: a.callStreams, Closed: ctx.Done()}) })
	for _, name := range a.config.Boot.GetWarm() {
		a.work.Go(func() {
			a.awaitSecretGone(ctx)
			if l, err := a.language(name); err == nil && l.Driver != "" {
				_ = a.interpreter(l).Warm(ctx) // a call that needs it tries again, and gets the error
			}
		})
	}
	if a.config.Init && !process.InGVisor() {
		a.work.Go(reserveThreads)
	}
	orphaned := a.keepLinked(ctx)
	if orphaned && a.config.Init { // the sandbox has to end, even when something below hangs
		time.AfterFunc(10*time.Second, func() { os.Exit(1) })
	}
	end()
	server.Close()
	a.carried.close()
	a.tools.Close()
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

// startNetwork starts the sandbox's network before any program that might need its variables.
func (a *Agent) startNetwork(ctx context.Context) {
	n := network.New(network.Config{Dial: a.dialNet, OnRefused: func() { a.setHandover(true) }, Who: a.whoIs,
		As: a.user.Do})
	if err := n.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent: the network:", err)
	}
	a.network.Store(n)
	a.work.Go(func() { n.Wait(ctx) })
}

// awaitSecretGone waits until the file with the secret is gone, which the host removes at the first
// dial. Code of the workspace, such as a .pth file, runs as soon as an interpreter starts, and must
// not read it. On gVisor a sandbox that boots has no such file.
func (a *Agent) awaitSecretGone(ctx context.Context) {
	path := filepath.Join(filepath.Dir(a.config.Socket), wire.SecretFile)
	for ctx.Err() == nil {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// spareThreads is how many threads reserveThreads makes. The limits of a container have room for them.
const spareThreads = 24

// reserveThreads makes threads, which the Go runtime keeps for later. Where the kernel counts the agent's threads
// with the programs of the sandbox, as in a container, a program that starts as many processes as it may would
// otherwise end the agent: the Go runtime gives up when it cannot start a thread.
func reserveThreads() {
	var locked, together sync.WaitGroup
	locked.Add(spareThreads)
	for range spareThreads {
		together.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			locked.Wait() // each goroutine has a thread of its own until all have one
		})
	}
	together.Wait()
}

// keepLinked links the agent to one host after the other until ctx ends, or until
// there was no host for too long; then it returns true.
func (a *Agent) keepLinked(ctx context.Context) (orphaned bool) {
	wakeSignals := make(chan os.Signal, 1)
	signal.Notify(wakeSignals, wire.WakeSignal)
	defer signal.Stop(wakeSignals)
	var backoff redialBackoff
	a.awaitSocket(ctx)
	for lastLinked := time.Now(); ctx.Err() == nil; {
		if a.renewIdentity() {
			lastLinked = time.Now() // a copy does not count the time of the original
		}
		began := time.Now()
		result := a.link(ctx)
		if result == linkBroken {
			a.tools.Cut()
			lastLinked = time.Now()
		}
		// A copy may have been made at any point of this loop, long ago. So the time is read before the secret.
		orphaned := a.config.OrphanTimeout > 0 && time.Since(lastLinked) > a.config.OrphanTimeout
		if a.renewIdentity() {
			lastLinked = time.Now()
			continue // in a copy the link of the original is broken: dial at once
		}
		if orphaned {
			return true
		}
		select {
		case <-time.After(backoff.pause(result, time.Since(began), time.Since(lastLinked))):
		case <-wakeSignals:
		case <-ctx.Done():
		}
	}
	return false
}

// awaitSocket waits at the agent's start until there is a socket: `sandlot-agent connect`, which may have to make it,
// starts after the agent.
func (a *Agent) awaitSocket(ctx context.Context) {
	limit := maxSocketWait
	if a.config.OrphanTimeout > 0 {
		limit = min(limit, a.config.OrphanTimeout)
	}
	for began := time.Now(); a.config.Carry == nil && ctx.Err() == nil && time.Since(began) < limit; {
		if _, err := os.Lstat(a.config.Socket); !errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-time.After(3 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// maxSocketWait is how long the agent waits for its socket before it dials now and then.
const maxSocketWait = 2 * time.Second

// ErrOrphaned is returned by Run when there was no host for Config.OrphanTimeout.
var ErrOrphaned = errors.New("there was no server for too long")

// renewIdentity gives the agent a new secret and boot id when its sandbox is a copy of the one
// in which it booted, and reports whether it is: then the host has put a new secret beside the
// socket. It also sets the redirection of the network again, which a copy does not have.
func (a *Agent) renewIdentity() bool {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(a.config.Socket), wire.SecretFile))
	if err != nil {
		return false
	}
	secret, err := hex.DecodeString(string(text))
	if err != nil || len(secret) != wire.SecretLen || bytes.Equal(secret, a.currentSecret()) {
		return false
	}
	if n := a.network.Load(); n != nil {
		if err := n.Redirect(); err != nil {
			fmt.Fprintln(os.Stderr, "sandlot-agent: the network:", err)
		}
	}
	a.home().makeFolders() // a copy has another workspace, without them
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secret, a.bootID, a.lastUsed = secret, newBootID(), time.Now()
	return true
}

// currentSecret returns the secret that the agent sends in greetings.
func (a *Agent) currentSecret() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secret
}

// link makes one link to the host, serves it until it breaks, and returns how it ended.
func (a *Agent) link(ctx context.Context) linkResult {
	c, err := a.dialHost(ctx)
	if err != nil {
		return noServer
	}
	if wire.Greet(c, a.currentSecret()) != nil {
		c.Close()
		return linkFailed
	}
	mux, err := yamux.Server(wire.Coalesce(c), wire.AgentMuxConfig())
	if err != nil {
		c.Close()
		return linkFailed
	}
	stop := context.AfterFunc(ctx, func() { mux.Close() })
	defer stop()
	defer mux.Close()
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			return linkBroken
		}
		a.work.Go(func() { a.dispatch(ctx, s) })
	}
}

// dialHost dials the host's socket, and makes sure that no program of the sandbox listens there:
// programs that are root may be able to replace the socket of `sandlot-agent connect`.
func (a *Agent) dialHost(ctx context.Context) (net.Conn, error) {
	if a.config.Carry != nil { // the host alone is at the other end; programs of the sandbox may dial it, too
		return a.carried.open(ctx, a.config.Carry)
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", a.config.Socket)
	if err != nil || !a.config.Init || process.InGVisor() {
		return c, err
	}
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(cerr, err); err == nil && peer.Pid != 0 && !process.StartedFromOutside(int(peer.Pid)) {
		err = fmt.Errorf("process %d of the sandbox listens in place of the host", peer.Pid)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialNet makes a connection for requests of the sandbox's network.
func (a *Agent) dialNet(ctx context.Context) (net.Conn, error) {
	c, err := a.dialHost(ctx)
	if err != nil {
		return nil, err
	}
	if err := wire.GreetNet(c, a.currentSecret()); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialDirect makes the connection that a ticket of the host is for. The file is blocking, as
// programs expect of a pipe.
func (a *Agent) dialDirect(ticket []byte) (*os.File, error) {
	if len(ticket) != wire.SecretLen {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "the ticket of a connection has a wrong length")
	}
	c, err := a.dialHost(context.Background())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := wire.GreetDirect(c, wire.Ticket(ticket)); err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, wire.Errorf(connect.CodeUnimplemented, "the connections of this sandbox are carried over another one")
	}
	f, err := u.File()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dispatch serves a stream, according to its kind.
func (a *Agent) dispatch(ctx context.Context, s *yamux.Stream) {
	var kind [1]byte
	if _, err := s.Read(kind[:]); err != nil {
		s.Close()
		return
	}
	switch kind[0] {
	case wire.CallStream:
		select {
		case a.callStreams <- s:
		case <-ctx.Done():
			s.Close()
		}
	case wire.RunStream:
		a.serveRuns(ctx, s)
		s.Close()
	case wire.RawStream:
		defer a.beginCall()()
		a.serveRaw(s)
		s.Close()
	default:
		s.Close()
	}
}

// beginCall counts one more call as active, until the function that it returns is called.
func (a *Agent) beginCall() func() {
	a.mu.Lock()
	a.activeCalls++
	a.mu.Unlock()
	a.Enforcer.CheckSoon()
	return func() {
		a.mu.Lock()
		a.activeCalls--
		a.lastUsed = time.Now()
		a.mu.Unlock()
	}
}

// markUsed notes that the sandbox was in use until now.
func (a *Agent) markUsed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastUsed = time.Now()
}

// callsEnded returns when the last call ended; the zero time: one runs.
func (a *Agent) callsEnded() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.activeCalls > 0 {
		return time.Time{}
	}
	return a.lastUsed
}

// recentlyActive reports whether a call runs, or ended a moment ago.
func (a *Agent) recentlyActive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.activeCalls > 0 || time.Since(a.lastUsed) < process.CheckIdle
}

// recordKill records which limit the processes with these ids were killed for. The calls that
// started them return it.
func (a *Agent) recordKill(pids map[int]bool, limit string) {
	a.Processes.RecordKill(pids, limit)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range a.interps {
		if pids[i.PID()] {
			i.RecordKill(limit)
		}
	}
}

// home returns the home that all programs of the sandbox share.
func (a *Agent) home() home {
	a.mu.Lock()
	defer a.mu.Unlock()
	return home{root: "/", env: maps.Clone(a.env), user: a.user}
}

// workingFolder returns the directory where programs start that have no other.
func (a *Agent) workingFolder() string {
	if a.config.Workdir != "" {
		return a.config.Workdir
	}
	return a.Base()
}

// checkWorkdir returns an error until there is a folder where programs start: none of them would. A path in a file
// system of the kernel's own may lead each program elsewhere.
func (a *Agent) checkWorkdir() error {
	dir := a.config.Workdir
	if dir == "" || a.workdirFound.Load() {
		return nil
	}
	inKernel := slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(f string) bool {
		return strings.HasPrefix(filepath.Clean("/"+dir)+"/", f+"/")
	})
	st, err := os.Stat(dir)
	if inKernel || err == nil && !st.IsDir() || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) ||
		errors.Is(err, syscall.ELOOP) {
		return wire.Errorf(connect.CodeFailedPrecondition, "programs would start in %s, which is not a folder", dir)
	}
	a.workdirFound.Store(true)
	return nil
}

// withUserHome returns variables with HOME and USER of the sandbox's user.
func (a *Agent) withUserHome(env map[string]string) map[string]string {
	if a.user == nil || !a.config.Init {
		return env
	}
	h := a.home()
	maps.Copy(h.env, env)
	all := map[string]string{"HOME": h.userHome(), "USER": a.user.Label()}
	for k, v := range env {
		if _, ok := all[k]; !ok {
			all[k] = v
		}
	}
	return all
}

// languageTable returns the languages of the sandbox's template.
func (a *Agent) languageTable() []*agentv1.Language {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.languages
}

// environment returns the variables of the template, the session and the call as a list for
// exec. With noColor it tells programs to print no colors.
func (a *Agent) environment(call map[string]string, noColor bool) []string {
	env := a.variables(call)
	if noColor {
		setNoColor(env)
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// variables returns the variables of the template, the session, the network and the call.
func (a *Agent) variables(call map[string]string) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	env := maps.Clone(a.env)
	maps.Copy(env, a.bound)
	if n := a.network.Load(); n != nil {
		maps.Copy(env, n.Environment())
	}
	maps.Copy(env, a.session)
	maps.Copy(env, call)
	a.addToolPaths(env)
	return env
}

// changeVariables changes the variables of programs. Interpreters that run get what differs before their next cell;
// with restart, those that have run no cell yet start again, so that they have what is read at their start alone, such
// as PYTHONPATH. change is called while mu is held. The caller holds boundMu.
func (a *Agent) changeVariables(ctx context.Context, restart bool, change func()) {
	before := a.variables(nil)
	a.mu.Lock()
	change()
	interps := slices.Collect(maps.Values(a.interps))
	a.mu.Unlock()
	set := a.variables(nil)
	var remove []string
	for name, value := range before {
		if now, ok := set[name]; !ok {
			remove = append(remove, name)
		} else if now == value {
			delete(set, name)
		}
	}
	if len(set)+len(remove) == 0 {
		return
	}
	slices.Sort(remove)
	for _, i := range interps {
		i.SetEnvironment(ctx, interp.Change{Set: set, Remove: remove, Restart: restart})
	}
}

// Hello implements the RPC.
func (a *Agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &agentv1.HelloResponse{BootId: a.bootID}, nil
}

// Configure implements the RPC.
func (a *Agent) Configure(ctx context.Context, r *agentv1.ConfigureRequest) (*agentv1.ConfigureResponse, error) {
	err := a.checkWorkdir()
	if err == nil {
		err = a.configure(r)
	}
	if r.Bound != nil && err == nil {
		a.applyBound(ctx, r.Bound)
	}
	if r.Variables != nil && err == nil {
		a.boundMu.Lock()
		defer a.boundMu.Unlock()
		a.changeVariables(ctx, true, func() { a.session = r.Variables.Env })
	}
	if r.Renew && err == nil {
		err = a.renewInterpreters(ctx)
	}
	return &agentv1.ConfigureResponse{Renewed: r.Renew}, err
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
		a.home().configureGit(m.Git)
	}
	env := a.withUserHome(m.Env)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.env, env)
	if a.config.Capable && a.env["TAR_OPTIONS"] == wire.NoSameOwner { // here tar can give files away
		delete(a.env, "TAR_OPTIONS")
	}
	a.languages = m.Languages
	return nil
}

// Usage implements the RPC. It waits until the host knows of the connections that were refused until now.
func (a *Agent) Usage(context.Context, *agentv1.UsageRequest) (*agentv1.UsageResponse, error) {
	a.awaitReports()
	u := a.Enforcer.Usage()
	busy, attached, quiet := a.Processes.Busy(), a.Attached(), uint64(a.Activity.Quiet().Microseconds())
	a.mu.Lock()
	defer a.mu.Unlock()
	u.Attached, u.QuietMicros = attached || a.activeCalls > 0, &quiet
	u.IdleMicros = uint64(time.Since(a.lastUsed).Microseconds())
	u.Busy = busy || a.activeCalls > 0
	if n := a.network.Load(); n != nil {
		u.Network = string(n.Access())
	}
	return u, nil
}

// ListPorts implements the RPC.
func (a *Agent) ListPorts(context.Context, *agentv1.ListPortsRequest) (*agentv1.ListPortsResponse, error) {
	r := new(agentv1.ListPortsResponse)
	for _, l := range process.Listeners() {
		r.Listeners = append(r.Listeners, &agentv1.Listener{Port: l.Port, Program: wire.UTF8(l.Program)})
	}
	return r, nil
}

// ListProcesses implements the RPC. Interpreters are listed as processes, too.
func (a *Agent) ListProcesses(context.Context, *agentv1.ListProcessesRequest) (*agentv1.ListProcessesResponse, error) {
	return &agentv1.ListProcessesResponse{Processes: append(a.List(), a.interpreters()...)}, nil
}

// StopProcess implements the RPC. The process may be an interpreter.
func (a *Agent) StopProcess(ctx context.Context, r *agentv1.StopProcessRequest) (*agentv1.StopProcessResponse, error) {
	if i := a.interpreterByID(r.ProcessId); i != nil {
		return stopInterpreter(ctx, i, syscall.Signal(r.Signal)), nil
	}
	return a.Processes.StopProcess(ctx, r)
}
