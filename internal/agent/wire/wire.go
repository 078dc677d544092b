// Package wire is the protocol between the host and the agent inside a sandbox: how a
// connection begins, the kinds of streams, and the frames of an interactive process.
//
// The agent dials. A connection that becomes the link begins with Greeting and a secret, and the
// host answers with one byte. After that both sides speak yamux: the host opens streams, whose
// first byte is their kind. A Call stream carries HTTP/1.1 with the Connect RPCs of
// proto/agent.proto. A Run stream carries one RunRequest after the other, each answered with
// RunEvents. A Raw stream begins with a StreamOpen message, which is answered with a
// StreamReply, and carries bytes after that. Connections with the other greetings are not
// multiplexed: one with NetGreeting carries requests of the sandbox's network, one with ToolGreeting
// a program's calls of tools, and one with DirectGreeting is a direct connection, which the
// host has asked for with a ticket.
//
// The agent dials, and the host listens on one socket for each sandbox, in a folder that the sandbox cannot
// write. So a server that restarts need not find or probe anything: it opens the same sockets, and sessions
// survive a crash and an upgrade. The host opens no path that a sandbox can write. And a socket on which the
// agent listened (gVisor's --host-uds=create) would make runsc checkpoint fail, and so prevent sleep; with
// --host-uds=open it works with the link open or closed. A runtime that cannot mount a socket bridges the
// stream: see Bridge.
package wire

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/protobuf/proto"
)

const (
	// Greeting is what the agent sends first on a connection that is to become the link.
	Greeting = "SANDLOT1"
	// NetGreeting begins a connection for the sandbox's network: it carries NetRequests, and
	// then the bytes of one TCP connection.
	NetGreeting = "SANDLOTN"
	// DirectGreeting begins a direct connection, which carries bytes between the host and a
	// program in the sandbox. A Ticket follows, in place of the secret.
	DirectGreeting = "SANDLOTD"
	// ToolGreeting begins a connection for calls of tools by a program of the sandbox: a ToolConn
	// follows, and then what the program and the host send each other.
	ToolGreeting = "SANDLOTT"
	// SecretLen is the length in bytes of the secret, or ticket, that follows a greeting.
	SecretLen = 32

	ack = 0x06 // ACK
	nak = 0x15 // NAK

	greetingTimeout = 5 * time.Second
)

// Ticket is the random secret of a direct connection. It is valid once.
type Ticket [SecretLen]byte

// Purpose is what a connection is for.
type Purpose byte

// What connections are for.
const (
	ForLink Purpose = iota
	ForNetwork
	ForDirect
	ForTools
)

// Kinds of streams: the first byte that the host writes on a stream.
const (
	CallStream byte = 'C'
	RawStream  byte = 'R'
	RunStream  byte = 'X'
)

// How many bytes of one stream each side buffers at most (the windows of yamux). The server
// buffers little, since it has the streams of all users. The agent buffers more, in the
// sandbox's own memory: input that a program does not read must not hold up a signal behind it.
const (
	hostWindow  = 512 << 10
	agentWindow = 4 << 20
)

// MaxMessage bounds one message in either direction, MaxFrame one frame, and MaxNetMessage a NetRequest or
// NetReply, in bytes.
const (
	MaxMessage    = 16 << 20
	MaxFrame      = 256 << 10
	MaxNetMessage = 4 << 10
)

// SocketDir is where the runtime mounts the folder with the agent's socket, read-only, and
// Socket is the name of the socket in it. SecretFile is beside the socket of a sandbox that is a
// copy of one that had booted, until its agent dials: it contains, in hexadecimal, the secret
// that the agent uses from then on.
const (
	SocketDir  = "/run/sandlot"
	Socket     = "agent.sock"
	SecretFile = "secret"
)

// ReadyDir is the folder of the ready packages of the machine, by language, and ReadyPython that of Python's.
const (
	ReadyDir    = "/opt/sandlot"
	ReadyPython = ReadyDir + "/python"
)

// FirstPrograms is the folder of the agent's programs that stand in PATH before the system's.
const FirstPrograms = "/var/lib/sandlot/first"

// AgentPath is where the sandbox sees the agent's program.
const AgentPath = "/.sandlot/agent"

// ConnectCommand is the agent's command that carries its connections over the standard input and output. ConnectUser is
// the user and group that runs it, and owns the socket's folder, where the runtime cannot share that with the host:
// not root, as programs of a sandbox may be. It is below 65536, as many daemons map no others.
const (
	ConnectCommand = "connect"
	ConnectUser    = 65531
)

// GoCacheCommand is the agent's command that gives Go its build cache (GOCACHEPROG). Its argument is the shared cache.
const GoCacheCommand = "gocache"

// AsCommand is the agent's command that runs a program as another user: USER[:GROUP] COMMAND [ARGUMENT...].
const AsCommand = "as"

// TrialCommand is the agent's command that checks the kernel of its sandbox. It prints TrialStarted as its first line,
// and then a Trial in JSON.
const (
	TrialCommand = "trial"
	TrialStarted = "started"
)

// Trial is what a sandbox has found out about its kernel.
type Trial struct {
	Call    time.Duration `json:"call"`    // of one system call
	Process time.Duration `json:"process"` // of the start and end of one process
}

// ResolvConf is the sandbox's /etc/resolv.conf: the agent is the name server. GitIgnore is its /etc/gitignore.
const (
	ResolvConf = "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n"
	GitIgnore  = "# What pip and npm installed.\n/.local/\n"
)

// WakeSignal tells an agent that a server has opened its socket again, so that the agent dials at
// once. A runtime sends it if it can. Agents that do not know the signal ignore it.
// It is SIGWINCH of Linux, whatever the server's system is.
const WakeSignal = syscall.Signal(28)

// The variables of the agent's environment. The agent removes them when it has read them.
const (
	EnvSecret = "SANDLOT_AGENT_SECRET" // hex
	EnvSocket = "SANDLOT_AGENT_SOCKET"
	EnvOrphan = "SANDLOT_AGENT_ORPHAN" // how long to run without a host, as time.Duration prints it; optional
	EnvBoot   = "SANDLOT_AGENT_BOOT"   // base64 of a Boot
	EnvUser   = "SANDLOT_AGENT_USER"   // a User as JSON; optional: root
	// EnvPlainFiles is set where programs run on the host's kernel and are to make no set-user-ID
	// files and no devices; optional.
	EnvPlainFiles = "SANDLOT_AGENT_PLAIN_FILES"
	// EnvEnclosed is set where a sandbox is a container, and programs are to use of the kernel no more than gVisor
	// would let them; optional.
	EnvEnclosed = "SANDLOT_AGENT_ENCLOSED"
	// EnvBuild is set where a template is built; optional.
	EnvBuild = "SANDLOT_AGENT_BUILD"
	// EnvCapable is set where programs of root keep Capabilities; optional: they have none.
	EnvCapable = "SANDLOT_AGENT_CAPABLE"
	// EnvProgram begins the names of variables that programs have without it, and the agent not at all.
	EnvProgram = "SANDLOT_AGENT_PROGRAM_"
	// EnvFile is the path of a file with the agent's whole environment but EnvSocket, each variable before a zero byte;
	// optional. Where others see a program's arguments, or what starts the agent adds variables of its own, a runtime
	// writes it.
	EnvFile = "SANDLOT_AGENT_ENVIRONMENT"
	// EnvPrefix begins the names of all of these.
	EnvPrefix = "SANDLOT_AGENT_"
)

// What begins the value of EnvSocket where the agent reaches the host by one stream, over which a Bridge carries its
// connections.
const (
	VsockAddress  = "vsock:"  // a port of the host follows, which the agent dials over AF_VSOCK
	BridgeAddress = "bridge:" // the path of a Unix socket follows; tests have it in the place of a port
)

// EnvNames are all of these. Where an image can supply variables, a runtime sets each, if only to nothing.
var EnvNames = []string{EnvSecret, EnvSocket, EnvOrphan, EnvBoot, EnvUser, EnvPlainFiles, EnvEnclosed,
	EnvBuild, EnvCapable, EnvFile}

// GoVariables are read by the runtime of each Go program when it starts, and so of the agent, which is the only process
// of a sandbox with capabilities. It gets none of an image.
var GoVariables = []string{"GODEBUG", "GOGC", "GOMEMLIMIT", "GOTRACEBACK", "GOMAXPROCS", "GORACE", "GOCOVERDIR"}

// NoSameOwner is the value of TAR_OPTIONS by which tar does not set owners.
const NoSameOwner = "--no-same-owner"

// Capabilities are the numbers of the capabilities that programs of root have in a sandbox with a kernel of its own:
// archives, package managers and servers give files to other users, and become them. None of them reaches the agent,
// the network's rules, devices or mounts.
var Capabilities = map[string]uintptr{"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4,
	"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_NET_BIND_SERVICE": 10, "CAP_SYS_CHROOT": 18}

// CutList is the media type of a rich value that names the file with all of a text that a result has in part: a comment
// with the file's size, and its URI.
const CutList = "text/uri-list;cut"

// OutputDir is the folder in the sandbox for the files of outputs that do not fit inline.
const OutputDir = "/var/lib/sandlot/output"

// ErrRefused is returned by Greet when the host refuses the secret.
var ErrRefused = errors.New("wire: the host refused the link")

// Greet begins a link. The agent calls it.
func Greet(c net.Conn, secret []byte) error { return greet(c, Greeting, secret) }

// GreetNet begins a connection for the sandbox's network. The agent calls it.
func GreetNet(c net.Conn, secret []byte) error { return greet(c, NetGreeting, secret) }

// GreetTools begins a connection for calls of tools. The agent calls it.
func GreetTools(c net.Conn, secret []byte) error { return greet(c, ToolGreeting, secret) }

// GreetDirect begins a direct connection. The agent calls it with the host's ticket.
func GreetDirect(c net.Conn, t Ticket) error { return greet(c, DirectGreeting, t[:]) }

func greet(c net.Conn, greeting string, secret []byte) error {
	c.SetDeadline(time.Now().Add(greetingTimeout))
	defer c.SetDeadline(time.Time{})
	if _, err := c.Write(append([]byte(greeting), secret...)); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[0] != ack {
		return ErrRefused
	}
	return nil
}

// Admit is the host's side of a greeting: it reads the greeting, checks the secret, answers, and
// returns what the connection is for. Claim reports whether a ticket is valid. After an error
// the caller closes the connection.
func Admit(c net.Conn, secret []byte, claim func(Ticket) bool) (Purpose, error) {
	c.SetDeadline(time.Now().Add(greetingTimeout))
	defer c.SetDeadline(time.Time{})
	buf := make([]byte, len(Greeting)+SecretLen)
	if _, err := io.ReadFull(c, buf); err != nil {
		return 0, fmt.Errorf("wire: reading the greeting: %w", err)
	}
	purpose, valid := ForLink, false
	switch key := buf[len(Greeting):]; string(buf[:len(Greeting)]) {
	case Greeting:
		valid = subtle.ConstantTimeCompare(key, secret) == 1
	case NetGreeting:
		purpose, valid = ForNetwork, subtle.ConstantTimeCompare(key, secret) == 1
	case ToolGreeting:
		purpose, valid = ForTools, subtle.ConstantTimeCompare(key, secret) == 1
	case DirectGreeting:
		purpose, valid = ForDirect, claim != nil && claim(Ticket(key))
	}
	if !valid {
		c.Write([]byte{nak})
		return 0, errors.New("wire: a process that does not know the secret tried to be the agent")
	}
	if carried, ok := c.(*BridgeConn); ok {
		carried.bridge.known.Store(true)
	}
	_, err := c.Write([]byte{ack})
	return purpose, err
}

// AgentMuxConfig returns the settings of yamux for the agent's side.
func AgentMuxConfig() *yamux.Config {
	c := HostMuxConfig()
	c.MaxStreamWindowSize = agentWindow
	return c
}

// HostMuxConfig returns the settings of yamux for the server's side.
func HostMuxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // the kernel closes a Unix socket when its peer dies
	c.MaxStreamWindowSize = hostWindow
	c.StreamOpenTimeout = 30 * time.Second
	c.StreamCloseTimeout = 30 * time.Second
	c.ConnectionWriteTimeout = 20 * time.Second
	c.LogOutput = io.Discard
	return c
}

// WriteMessage writes the length of m, and m.
func WriteMessage(w io.Writer, m proto.Message) error {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 512), m)
	if err != nil {
		return err
	}
	size := len(b) - 4
	if size > MaxMessage {
		return fmt.Errorf("wire: message of %d bytes is over %d", size, MaxMessage)
	}
	binary.BigEndian.PutUint32(b, uint32(size))
	_, err = w.Write(b)
	return err
}

// ErrMessage is in the chain of ReadMessage's error when the bytes that it read are no valid
// message.
var ErrMessage = errors.New("wire: this is not a message")

// ReadMessage reads what WriteMessage wrote.
func ReadMessage(r io.Reader, m proto.Message) error { return ReadBounded(r, m, MaxMessage) }

// ReadBounded reads what WriteMessage wrote. It returns an error for a message of more than max
// bytes.
func ReadBounded(r io.Reader, m proto.Message, max uint32) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > max {
		return fmt.Errorf("%w: %d bytes are over %d", ErrMessage, size, max)
	}
	// The buffer grows as bytes arrive, and not to a size that the peer only announces.
	b := make([]byte, 0, min(size, 64<<10))
	for len(b) < int(size) {
		b = slices.Grow(b, 1)
		n, err := r.Read(b[len(b):min(cap(b), int(size))])
		b = b[:len(b)+n]
		if err != nil && len(b) < int(size) {
			return err
		}
	}
	return Unmarshal(b, m)
}
