package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
)

// startConnect starts `sandlot-agent connect` in the container, and returns its standard input and output.
func (b *box) startConnect(ctx context.Context) (io.ReadWriteCloser, error) {
	daemon := b.runtime.client
	made, err := daemon.ExecCreate(ctx, b.name, client.ExecCreateOptions{
		User: fmt.Sprintf("%d:%[1]d", wire.ConnectUser), Cmd: []string{wire.AgentPath, wire.ConnectCommand},
		WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return nil, err
	}
	attached, err := daemon.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	return &execStream{Conn: attached.Conn, reader: attached.Reader}, nil
}

// execStream is the standard input and output of a process without a terminal. The daemon sends its outputs in frames:
// a byte that names the output, three without meaning, and the length of what follows (uint32, big endian).
type execStream struct {
	net.Conn
	reader    *bufio.Reader
	left      uint32 // bytes of the frame that is being read
	complaint []byte // the first part of the standard error
}

// maxComplaint bounds what is kept of the standard error, in bytes.
const maxComplaint = 1000

// Read reads the standard output. Its error says what the process wrote to its standard error.
func (s *execStream) Read(p []byte) (int, error) {
	n, err := s.read(p)
	if text := strings.TrimSpace(string(s.complaint)); err != nil && text != "" {
		err = errors.Join(err, fmt.Errorf("the process says: %q", text))
	}
	return n, err
}

func (s *execStream) read(p []byte) (int, error) {
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
	s.complaint = append(s.complaint, first[:min(len(first), maxComplaint-len(s.complaint))]...)
	_, err = io.CopyN(io.Discard, s.reader, size-int64(len(first)))
	return err
}
