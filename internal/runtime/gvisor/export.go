package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"sandlot/internal/sandbox"
)

// Export implements sandbox.Files. What a sandbox has removed is the device 0:0, as overlays have it. The mount points
// and files that Sandlot adds to an image are in the archive. The sandbox cannot change its files meanwhile.
func (r *Runtime) Export(ctx context.Context, sb sandbox.Sandbox, w io.Writer) error {
	b, ok := sb.(*box)
	if !ok {
		return errors.New("gvisor: this sandbox is another runtime's")
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, read)
		read.Close() // after an error, gVisor cannot write any more
		copied <- err
	}()
	cmd := r.command(ctx, b, "tar", "rootfs-upper", "-file", "/proc/self/fd/3", b.spec.ID)
	cmd.ExtraFiles = []*os.File{write}
	err = runCommand(cmd, "tar")
	write.Close()
	if copyErr := <-copied; copyErr != nil {
		return fmt.Errorf("writing what the sandbox has written: %w", copyErr)
	}
	return err
}
