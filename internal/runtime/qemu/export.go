//go:build linux && !mac

package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// Seal implements sandbox.Files. Sandboxes have no folder of the host.
func (r *Runtime) Seal(context.Context, string, bool) (failed int) { return 0 }

// maxExportChunk bounds a chunk of an archive, in bytes.
const maxExportChunk = 64 << 10

// Export implements sandbox.Files. The archive is the machine's: whoever reads it trusts nothing of it.
func (r *Runtime) Export(ctx context.Context, s sandbox.Sandbox, w io.Writer) error {
	b, isOwn := s.(*box)
	if !isOwn {
		return errors.New("qemu: it is a sandbox of another runtime")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(b.dir, exportSock)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	said := make(chan error, 1)
	go func() {
		err := b.control.call(ctx, wire.MachineCall{Do: wire.MachineExport})
		if err != nil {
			conn.SetDeadline(time.Unix(1, 0))
		}
		said <- err
	}()
	err = copyChunks(w, conn)
	if err != nil {
		cancel()
	}
	if saidErr := <-said; saidErr != nil && (err == nil || !errors.Is(saidErr, context.Canceled)) {
		err = errors.Join(saidErr, err)
	}
	if err != nil {
		return fmt.Errorf("reading what a sandbox has written: %w", err)
	}
	return nil
}

func copyChunks(w io.Writer, from io.Reader) error {
	chunk := make([]byte, maxExportChunk)
	for {
		var length uint32
		if err := binary.Read(from, binary.BigEndian, &length); err != nil {
			return err
		}
		if length == 0 {
			return nil
		}
		if length > maxExportChunk {
			return wire.ErrMessage
		}
		if _, err := io.ReadFull(from, chunk[:length]); err != nil {
			return err
		}
		if _, err := w.Write(chunk[:length]); err != nil {
			return err
		}
	}
}
