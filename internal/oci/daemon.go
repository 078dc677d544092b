package oci

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/dockercommand"
	"sandlot/internal/fault"
)

// openDaemon has a Docker daemon, the one of the docker command, write an image as `docker save` does.
func (s *Store) openDaemon(ctx context.Context, image string, want v1.Platform, tell func(Progress)) (*folder, error) {
	daemon, err := dockercommand.Client("", "")
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the docker command's daemon is not known: %v", err)
	}
	defer daemon.Close()
	host := daemon.DaemonHost()
	if !strings.HasPrefix(host, "unix://") && !strings.HasPrefix(host, "tcp://") {
		return nil, fault.New(fault.Configuration, "images are read from Docker daemons at unix:// and tcp://, and "+
			"not at %q: write the image with `docker save -o FILE NAME`, and import the file", host)
	}
	saved, err := daemon.ImageSave(ctx, []string{image})
	if err != nil {
		cause := errors.New(printable(err.Error()))
		if errdefs.IsNotFound(err) {
			return nil, fault.Wrap(fault.NotFound, cause, "the Docker daemon has no image %s", image)
		}
		return nil, fault.Wrap(fault.Connection, cause, "the Docker daemon at %s does not give the image %s: %v. "+
			"Without a daemon, import a file that `docker save` wrote", host, image, cause)
	}
	defer saved.Close()
	f := newFolder(daemonPrefix + image)
	file, err := s.spool(&countingReader{from: saved, title: f.title, tell: tell})
	if err != nil {
		if fault.From(err).Kind == fault.Internal {
			err = fault.Wrap(fault.Connection, err, "the Docker daemon did not send the whole image %s: %v", image, err)
		}
		return nil, err
	}
	if err := f.readArchive(ctx, s, file, want); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// A countingReader reports how much has come of what has no known length.
type countingReader struct {
	from  io.Reader
	title string
	tell  func(Progress)
	n     int64
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.n += int64(n)
	stage := Loading
	if errors.Is(err, io.EOF) {
		stage = Loaded
	}
	r.tell(Progress{Layer: r.title, Stage: stage, Done: r.n})
	return n, err
}
