// Package carrier owns the process that carries the connections of a sandbox's agent where the Docker daemon sees no
// folder of the server's.
package carrier

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// Link carries the agent's connections of one sandbox over one process in it, `sandlot-agent connect`, whose standard
// input and output are streams of the daemon's. When that process or its streams end, Link starts another one.
type Link struct {
	daemon    *client.Client
	container string // its name
	wake      func() // makes the agent dial at once
	log       *slog.Logger
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	conns     chan net.Conn
}

const (
	// connectTimeout is how long a daemon may take to start the process, and the process to answer.
	connectTimeout = 30 * time.Second
	// firstPause is the pause before the next attempt, which doubles up to maxPause.
	firstPause, maxPause = 50 * time.Millisecond, 2 * time.Second
	// Memory and Threads are what the kernel has to allow on top of a sandbox's limits, for the process.
	Memory  = 24 << 20
	Threads = 48
)

// New returns the link of a sandbox in a container. Run starts it.
func New(ctx context.Context, daemon *client.Client, container string, wake func(), log *slog.Logger) *Link {
	l := &Link{daemon: daemon, container: container, wake: wake, log: log, conns: make(chan net.Conn)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// Close ends the link. The sandbox lives on.
func (l *Link) Close() { l.cancel() }

// Accept waits for the agent's next connection.
func (l *Link) Accept(ctx context.Context) (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, sandbox.ErrGone
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run starts one process after the other, until the link is closed.
func (l *Link) Run() {
	for pause := firstPause; l.ctx.Err() == nil; pause = min(2*pause, maxPause) {
		began := time.Now()
		err := l.carry()
		if l.ctx.Err() != nil {
			return
		}
		l.log.Debug("the connections of a sandbox ended, and are made again", "container", l.container, "error", err)
		if time.Since(began) > connectTimeout {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
	}
}

// carry starts the process, and passes its connections on until it or the link ends.
func (l *Link) carry() error {
	stream, err := l.startProcess()
	if err != nil {
		return err
	}
	bridge, err := wire.NewBridge(stream, true)
	if err != nil {
		stream.Close()
		return err
	}
	defer bridge.Close()
	stop := context.AfterFunc(l.ctx, func() { bridge.Close() })
	defer stop()
	if err := bridge.Ping(); err != nil {
		return errors.Join(err, stream.fault())
	}
	l.wake()
	for {
		c, err := bridge.Accept()
		if err != nil {
			return errors.Join(err, stream.fault())
		}
		select {
		case l.conns <- c:
		case <-bridge.Done():
			c.Close()
		}
	}
}

// startProcess starts the process, and returns its standard input and output.
func (l *Link) startProcess() (*execStream, error) {
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	made, err := l.daemon.ExecCreate(ctx, l.container, client.ExecCreateOptions{
		User: fmt.Sprintf("%d:%[1]d", wire.ConnectUser), Cmd: []string{wire.AgentPath, wire.ConnectCommand},
		WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return nil, err
	}
	attached, err := l.daemon.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	return &execStream{Conn: attached.Conn, reader: attached.Reader}, nil
}

// execStream is the standard input and output of a process without a terminal. The daemon sends its outputs in frames:
// a byte that names the output, three without meaning, and the length of what follows (uint32, big endian).
type execStream struct {
	net.Conn
	reader *bufio.Reader
	left   uint32 // bytes of the frame that is being read

	mu        sync.Mutex
	complaint []byte // the first part of the standard error
}

// maxComplaint bounds what is kept of the standard error, in bytes.
const maxComplaint = 1000

// Read reads the standard output.
func (s *execStream) Read(p []byte) (int, error) {
	for s.left == 0 {
		var header [8]byte
		if _, err := io.ReadFull(s.reader, header[:]); err != nil {
			return 0, err
		}
		size := binary.BigEndian.Uint32(header[4:])
		switch header[0] {
		case 1:
			s.left = size
		case 2:
			if err := s.readComplaint(int64(size)); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("the Docker daemon sends a frame of the unknown kind %d", header[0])
		}
	}
	n, err := s.reader.Read(p[:min(len(p), int(s.left))])
	s.left -= uint32(n)
	return n, err
}

// readComplaint reads a frame of the standard error.
func (s *execStream) readComplaint(size int64) error {
	first, err := io.ReadAll(io.LimitReader(s.reader, min(size, maxComplaint)))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.complaint = append(s.complaint, first[:min(len(first), maxComplaint-len(s.complaint))]...)
	s.mu.Unlock()
	_, err = io.CopyN(io.Discard, s.reader, size-int64(len(first)))
	return err
}

// fault returns what the process wrote to its standard error as an error; nil: nothing.
func (s *execStream) fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := strings.TrimSpace(string(s.complaint)); text != "" {
		return fmt.Errorf("the process says: %q", text)
	}
	return nil
}
