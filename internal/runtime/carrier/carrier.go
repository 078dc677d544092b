// Package carrier owns the process that carries the connections of a sandbox's agent where the runtime shares no folder
// with the sandbox.
package carrier

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// Link carries the agent's connections of one sandbox over one process in it, `sandlot-agent connect`. When that
// process or its stream ends, Link starts another one.
type Link struct {
	start  func(context.Context) (io.ReadWriteCloser, error)
	wake   func()
	log    *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	conns  chan net.Conn
	// Patience is how long the other end of a stream may take until it is known to be the agent; the time in which the
	// server has not asked for its connection does not count. 0: only the agent can be there. It is set before Run.
	Patience time.Duration
}

const (
	// connectTimeout is how long a runtime may take to start the process, and the process to answer.
	connectTimeout = 30 * time.Second
	// firstPause is the pause before the next attempt, which doubles up to maxPause.
	firstPause, maxPause = 50 * time.Millisecond, 2 * time.Second
	// Memory and Threads are what the kernel has to allow on top of a sandbox's limits, for the process.
	Memory  = 24 << 20
	Threads = 48
)

// New returns the link of a sandbox. start starts the process, and returns its standard input and output, which do not
// end with its context; an error of reading may say what the process complained of. start returns when its context ends,
// and closing the stream ends the process and a read that waits. wake makes the agent dial at once.
// Run starts the link.
func New(ctx context.Context, start func(context.Context) (io.ReadWriteCloser, error), wake func(),
	log *slog.Logger) *Link {
	l := &Link{start: start, wake: wake, log: log, conns: make(chan net.Conn)}
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
		l.log.Debug("the connections of a sandbox ended, and are made again", "error", err)
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
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	stream, err := l.start(ctx)
	cancel()
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
	began, left := time.Now(), l.Patience
	late := time.AfterFunc(left, func() {
		if l.Patience > 0 && !bridge.Known() {
			bridge.Close()
		}
	})
	defer late.Stop()
	if err := bridge.Ping(); err != nil {
		bridge.Close()
		_, why := bridge.Accept() // the error of the stream
		return errors.Join(err, why)
	}
	l.wake()
	for {
		c, err := bridge.Accept()
		if err != nil {
			return err
		}
		late.Stop()
		left -= time.Since(began)
		select {
		case l.conns <- c:
		case <-bridge.Done():
			c.Close()
		}
		began = time.Now()
		late.Reset(max(left, 0))
	}
}
