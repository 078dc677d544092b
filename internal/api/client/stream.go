package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
)

// upgrade connects to the server and switches the connection to the protocol to.
func (c *Client) upgrade(ctx context.Context, path, to string) (*conn.Buffered, error) {
	raw, err := c.dial(ctx)
	if err != nil {
		return nil, noServer(err)
	}
	r, err := c.request(ctx, "POST", path, nil)
	if err == nil {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", to)
		err = r.Write(raw)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	stream := &conn.Buffered{Conn: raw, Reader: bufio.NewReaderSize(raw, 64<<10)}
	resp, err := http.ReadResponse(stream.Reader, r)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = responseError(resp)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return stream, nil
}

// Dial connects to a port of a session. The connection has a CloseWrite, which half-closes
// it.
func (c *Client) Dial(ctx context.Context, session string, port int) (net.Conn, error) {
	stream, err := c.upgrade(ctx, fmt.Sprintf("%s/ports/%d", SessionPath(session), port), protocol.UpgradeDial)
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// Terminal has the streams of an interactive process.
type Terminal struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize receives the size of the terminal whenever it changes.
	Resize chan command.Size
}

// Exec runs a process in a session and returns its exit code.
func (c *Client) Exec(ctx context.Context, session string, cmd command.Command, t Terminal) (int, error) {
	stream, err := c.upgrade(ctx, SessionPath(session)+"/exec", protocol.UpgradeExec)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	if err := cmd.Write(stream); err != nil {
		return 0, err
	}
	started, err := command.ReadStarted(stream)
	if err != nil {
		return 0, err
	}
	if started.Failure != "" {
		return 0, errors.New(started.Failure)
	}
	ended, input := make(chan struct{}), make(chan []byte)
	go read(t.Stdin, input, ended) // nobody waits for it: a read of a terminal cannot be ended
	var sending sync.WaitGroup
	sending.Go(func() { send(stream, t, input, ended) })
	defer func() {
		close(ended)
		stream.Close()
		sending.Wait()
	}()
	return receive(stream, t)
}

// read sends the input in parts; an empty part is the end of the input.
func read(r io.Reader, input chan<- []byte, ended <-chan struct{}) {
	for {
		buf := make([]byte, 32<<10)
		n, err := r.Read(buf)
		if n > 0 {
			select {
			case input <- buf[:n]:
			case <-ended:
				return
			}
		}
		if err != nil {
			select {
			case input <- nil:
			case <-ended:
			}
			return
		}
	}
}

func send(w io.Writer, t Terminal, input <-chan []byte, ended <-chan struct{}) {
	for {
		var err error
		select {
		case b := <-input:
			err = command.WriteFrame(w, command.Stdin, b)
		case size := <-t.Resize:
			err = command.WriteFrame(w, command.Resize, size.ResizeData())
		case <-ended:
			return
		}
		if err != nil {
			return
		}
	}
}

func receive(r io.Reader, t Terminal) (int, error) {
	buf := make([]byte, command.MaxFrame)
	for {
		kind, data, err := command.ReadFrame(r, buf)
		if err != nil {
			return 0, fmt.Errorf("the connection to the process broke: %w", err)
		}
		switch kind {
		case command.Stdout:
			_, err = t.Stdout.Write(data)
		case command.Stderr:
			_, err = t.Stderr.Write(data)
		case command.Exit:
			code, why, err := command.ExitStatus(data)
			if why != "" {
				fmt.Fprintln(t.Stderr, "sandlot: "+why)
			}
			return code, err
		}
		if err != nil {
			return 0, err
		}
	}
}
