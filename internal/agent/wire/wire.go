// Package wire is what the host and the agent inside a sandbox agree on: how a
// link begins, what a stream is for, and the frames of an interactive process.
//
// The agent dials; each connection begins with Greeting and a secret, and the
// host answers one byte. After that both sides speak yamux: the host opens
// streams, whose first byte is their Kind. A Call stream carries HTTP/1.1 with
// the Connect RPCs of proto/agent.proto; a Run stream carries one RunRequest
// after the other, each answered with RunEvents; a Raw stream begins with a
// StreamOpen message, is answered with a StreamReply, and carries bytes after
// that. Two other greetings begin connections that are not multiplexed: with
// NetGreeting one TCP connection of the sandbox to the network, or a look-up;
// with DirectGreeting one that the host asked for, and gave a ticket for.
package wire

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	// Greeting is sent first on every connection, by the agent.
	Greeting = "SANDLOT1"
	// NetGreeting is sent instead on a connection that the sandbox wants to use
	// for its network: it carries NetRequests, and then the bytes of one TCP
	// connection.
	NetGreeting = "SANDLOTN"
	// DirectGreeting is sent instead, with a Ticket in place of the secret, on a
	// connection that carries bytes straight between the host and a program.
	DirectGreeting = "SANDLOTD"
	// SecretLen is the length of the secret that follows, in bytes.
	SecretLen = 32

	accepted = 0x06 // ACK
	refused  = 0x15 // NAK

	greetingTimeout = 5 * time.Second
)

// Ticket lets one connection in, once.
type Ticket [SecretLen]byte

// Purpose is what a connection is for.
type Purpose byte

// What connections are for.
const (
	Link Purpose = iota
	Network
	Direct
)

// Kinds of streams: the first byte that the host writes on each.
const (
	Call byte = 'C'
	Raw  byte = 'R'
	Run  byte = 'X'
)

// What one stream can make each side hold, in bytes. The server holds little, as
// it has the streams of all users. What the agent holds is the sandbox's own
// memory: a signal has to pass input that waits there.
const (
	serverWindow = 512 << 10
	agentWindow  = 4 << 20
)

// MaxMessage bounds one message in either direction, MaxFrame one frame, and
// MaxNet a NetRequest or NetReply, in bytes.
const (
	MaxMessage = 16 << 20
	MaxFrame   = 256 << 10
	MaxNet     = 4 << 10
)

// SocketDir is where the runtime mounts the folder with the agent's socket,
// read-only, and Socket the socket's name in it. SecretFile stands beside the
// socket of a sandbox that is a copy of one that had booted, until its agent
// dials: the secret, in hexadecimal, that the agent has from then on.
const (
	SocketDir  = "/run/sandlot"
	Socket     = "agent.sock"
	SecretFile = "secret"
)

// Wake is the signal by which a runtime that can send one tells an agent that a
// server has opened its socket again. It does nothing to one that does not know it.
const Wake = unix.SIGWINCH

// The agent learns these from its environment, and removes them from it.
const (
	EnvSecret = "SANDLOT_AGENT_SECRET" // hex
	EnvSocket = "SANDLOT_AGENT_SOCKET"
	EnvOrphan = "SANDLOT_AGENT_ORPHAN" // Spec.Orphan, as time.Duration prints it; may be missing
	EnvBoot   = "SANDLOT_AGENT_BOOT"   // base64 of a Boot
)

// OutputDir, inside the sandbox, keeps whole outputs that did not fit inline.
const OutputDir = "/var/lib/sandlot/output"

// ErrRefused is returned by Greet when the host does not want this agent.
var ErrRefused = errors.New("wire: the host refused the link")

// Greet is the agent's side of the start of a link.
func Greet(c net.Conn, secret []byte) error { return greet(c, Greeting, secret) }

// GreetNet is the agent's side of the start of a network connection.
func GreetNet(c net.Conn, secret []byte) error { return greet(c, NetGreeting, secret) }

// GreetDirect is the start of a connection that the host gave a ticket for.
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
	if answer[0] != accepted {
		return ErrRefused
	}
	return nil
}

// Admit is the host's side: it reads the greeting and answers it, and says what
// the connection is for. A ticket is good when claim says so, which it does
// once. The connection is useless after an error; the caller closes it.
func Admit(c net.Conn, secret []byte, claim func(Ticket) bool) (Purpose, error) {
	c.SetDeadline(time.Now().Add(greetingTimeout))
	defer c.SetDeadline(time.Time{})
	buf := make([]byte, len(Greeting)+SecretLen)
	if _, err := io.ReadFull(c, buf); err != nil {
		return 0, fmt.Errorf("wire: reading the greeting: %w", err)
	}
	purpose, good := Link, false
	switch key := buf[len(Greeting):]; string(buf[:len(Greeting)]) {
	case Greeting:
		good = subtle.ConstantTimeCompare(key, secret) == 1
	case NetGreeting:
		purpose, good = Network, subtle.ConstantTimeCompare(key, secret) == 1
	case DirectGreeting:
		purpose, good = Direct, claim != nil && claim(Ticket(key))
	}
	if !good {
		c.Write([]byte{refused})
		return 0, errors.New("wire: a process that does not know the secret tried to be the agent")
	}
	_, err := c.Write([]byte{accepted})
	return purpose, err
}

// AgentMux returns the settings of yamux for the agent's side.
func AgentMux() *yamux.Config {
	c := Mux()
	c.MaxStreamWindowSize = agentWindow
	return c
}

// Mux returns the settings of yamux for the server's side.
func Mux() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // a Unix socket tells when its peer dies
	c.MaxStreamWindowSize = serverWindow
	c.StreamOpenTimeout = 30 * time.Second
	c.StreamCloseTimeout = 30 * time.Second
	c.ConnectionWriteTimeout = 20 * time.Second
	c.LogOutput = io.Discard
	return c
}

// WriteMessage writes m with its length before it.
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

// ErrMessage is in the chain of ReadMessage's error when something came that
// WriteMessage does not write.
var ErrMessage = errors.New("wire: this is no message")

// ReadMessage reads what WriteMessage wrote.
func ReadMessage(r io.Reader, m proto.Message) error { return ReadBounded(r, m, MaxMessage) }

// ReadBounded reads what WriteMessage wrote, and refuses more than max bytes.
func ReadBounded(r io.Reader, m proto.Message, max uint32) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > max {
		return fmt.Errorf("%w: %d bytes are over %d", ErrMessage, size, max)
	}
	// A size that is only claimed makes nobody hold that much.
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
