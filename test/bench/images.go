package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/runtime/docker/dockertest"
)

// imageBytes is the size of the image that is pulled, unpacked.
const imageBytes = 500e6

// shelf is a registry on this machine with one image.
type shelf struct {
	*bench
	dir       string
	reference string
	layers    int
	packed    int64 // bytes of the layers, compressed
	unpacked  int64 // and not compressed
	server    *http.Server
}

// newShelf makes an image of the Debian of the tests and this machine's Go, and starts a registry that has it.
func newShelf(b *bench) (s *shelf, err error) {
	h := &harness{ctx: b.ctx}
	var base string
	if err := h.do(func() { base = imagetest.BaseArchive(h) }); err != nil {
		return nil, err
	}
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(dir, "blobs")
	if err := os.Mkdir(blobs, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s = &shelf{bench: b, dir: dir, reference: l.Addr().String() + "/bench/image:1"}
	s.server = &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)))}
	go s.server.Serve(l)
	if err := s.fill(base); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *shelf) close() error { return errors.Join(s.server.Close(), os.RemoveAll(s.dir)) }

// fill pushes the image.
func (s *shelf) fill(base string) error {
	out, err := exec.CommandContext(s.ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	machine := strings.TrimSpace(string(out))
	img, err := s.add(empty.Image, base)
	for copies := 1; err == nil && s.unpacked < imageBytes; copies++ {
		for _, part := range []string{"bin", "pkg", "src"} {
			var path string
			path, err = s.archive(filepath.Join(machine, part), fmt.Sprintf("opt/go-%d/%s", copies, part))
			if err != nil {
				return err
			}
			if img, err = s.add(img, path); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(s.reference)
	if err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithContext(s.ctx))
}

// add adds a layer, compressed by gzip as registries have them.
func (s *shelf) add(img v1.Image, path string) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(path)
	if err != nil {
		return nil, err
	}
	size, err := layer.Size()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	s.layers, s.packed, s.unpacked = s.layers+1, s.packed+size, s.unpacked+info.Size()
	return mutate.AppendLayers(img, layer)
}

// archive writes a folder of this machine as a layer, below another name.
func (s *shelf) archive(folder, as string) (path string, err error) {
	f, err := os.CreateTemp(s.dir, "layer-*.tar")
	if err != nil {
		return "", err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: as + file[len(folder):], Mode: 0o644, Size: int64(len(text))})
		}
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
	return f.Name(), errors.Join(err, w.Close())
}

// read downloads and decompresses all layers, each beside the others, and keeps nothing.
func (s *shelf) read() error {
	ref, err := name.ParseReference(s.reference)
	if err != nil {
		return err
	}
	img, err := remote.Image(ref, remote.WithContext(s.ctx))
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	var all errgroup.Group
	for _, layer := range layers {
		all.Go(func() error {
			packed, err := layer.Compressed()
			if err != nil {
				return err
			}
			defer packed.Close()
			unpacked, err := gzip.NewReader(packed)
			if err == nil {
				_, err = io.Copy(io.Discard, unpacked)
			}
			return err
		})
	}
	return all.Wait()
}

// images measures how an image arrives, and what sandboxes of it cost.
func images(b *bench) (sec section, err error) {
	s, err := newShelf(b)
	if err != nil {
		return sec, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	pulls, err := s.pulls()
	if err != nil {
		return sec, err
	}
	boots, notes, err := s.boots()
	return section{title: "Images",
		method: fmt.Sprintf("An image of %.0f MB (%d layers, %.0f MB compressed): the small Debian of the tests, and "+
			"this machine's Go. A registry on this machine has it. In turns: `docker pull` by a daemon that was "+
			"started for this run, `sandlot image pull` into an empty state folder, and a program that downloads and "+
			"decompresses all layers at the same time, and keeps nothing. The disk is flushed before each of "+
			"the two pulls. Both unpack: after it, a container can start.\n\nThen new sessions of gVisor without a "+
			"pool, as in \"A new session without a pool\", in turns: of this image, and of the template `host`.",
			float64(s.unpacked)/1e6, s.layers, float64(s.packed)/1e6),
		tables: []table{pulls, boots}, notes: notes}, err
}

// pulls measures downloads.
func (s *shelf) pulls() (table, error) {
	t := timings("pull")
	var ours, theirs, raw samples
	err := s.withEngine(func(e *engine) error {
		if _, err := e.docker(s.ctx, "image", "rm", "--force", dockertest.BaseImage); err != nil {
			return err
		}
		for range pick(s.bench, 7, 1) {
			unix.Sync()
			err := theirs.take(func() error {
				_, err := e.docker(s.ctx, "pull", "--quiet", s.reference)
				return err
			})
			if err == nil {
				_, err = e.docker(s.ctx, "image", "rm", "--force", s.reference)
			}
			if err == nil {
				err = s.pull(&ours)
			}
			if err == nil {
				err = raw.take(s.read)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	t.add("`docker pull`", theirs)
	t.add("`sandlot image pull`", ours, verdict("P50 at most `docker pull`'s", ours.p(50) <= theirs.p(50)))
	t.add("beside: download and decompress, keep nothing", raw)
	return t, err
}

// pull pulls the image into an empty state folder.
func (s *shelf) pull(took *samples) error {
	state, err := tempDir()
	if err != nil {
		return err
	}
	unix.Sync()
	err = took.take(func() error {
		cmd := exec.CommandContext(s.ctx, filepath.Join(s.bin, "sandlot"), "--state-dir", state, "image", "pull",
			s.reference)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("sandlot image pull: %w: %s", err, out)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(state))
}

// boots measures new sessions of the image, and of host.
func (s *shelf) boots() (t table, notes []string, err error) {
	kinds := []*variant{
		{name: "`host`, from a snapshot"},
		{name: "the image, from a snapshot", image: true},
		{name: "`host`, without snapshots", settings: []string{"SANDLOT_SNAPSHOTS=false"}},
		{name: "the image, without snapshots", image: true, settings: []string{"SANDLOT_SNAPSHOTS=false"}},
	}
	err = s.serve(kinds, func() error {
		for range pick(s.bench, 50, 2) {
			for _, k := range kinds {
				if err := newSession(s.ctx, k.client, &k.took); err != nil {
					return fmt.Errorf("%s: %w", k.name, err)
				}
			}
		}
		notes, err = kinds[3].disk()
		return err
	})
	t = timings("boot to the first answer")
	for i, k := range kinds {
		goal := ""
		if k.image {
			goal = verdict("P50 at most `host`'s", k.took.p(50) <= kinds[i-1].took.p(50))
		}
		t.add(k.name, k.took, goal)
	}
	return t, notes, err
}

// variant is one of the compared kinds of sandboxes: of the image or of host, from a snapshot or not.
type variant struct {
	name     string
	image    bool
	settings []string
	server   *server
	client   *bareClient
	took     samples
}

// serve starts a server for each kind, and runs f when all have had a session and their snapshot.
func (s *shelf) serve(kinds []*variant, f func() error) error {
	if len(kinds) == 0 {
		return f()
	}
	k := kinds[0]
	settings := append(k.settings, "SANDLOT_POOL_SIZE=0")
	if k.image {
		settings = append(settings, "SANDBOX_IMAGE="+s.reference)
	}
	return s.with(func(server *server) error {
		k.server, k.client = server, server.bare("")
		defer k.client.close()
		ctx, cancel := context.WithTimeout(s.ctx, pullTimeout)
		defer cancel()
		session, err := open(ctx, k.client)
		for err != nil && ctx.Err() == nil { // a call waits for the pull for a while, and says then that it goes on
			session, err = open(ctx, k.client)
		}
		if err == nil {
			err = discard(s.ctx, k.client, session)
		}
		if err == nil && len(k.settings) == 0 {
			err = server.awaitImage()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		return s.serve(kinds[1:], f)
	}, settings...)
}

// disk says how much of the disk a second sandbox of an image takes.
func (k *variant) disk() ([]string, error) {
	ctx := k.server.ctx
	var used []int64
	for range 2 {
		session, err := open(ctx, k.client)
		if err != nil {
			return nil, err
		}
		defer discard(ctx, k.client, session)
		bytes, err := usage(k.server.state)
		if err != nil {
			return nil, err
		}
		used = append(used, bytes)
	}
	return []string{fmt.Sprintf("A second sandbox of the image takes %d KiB of the disk: the state folder with one "+
		"has "+
		"%.1f MiB, with two %.1f MiB (blocks of all files).", (used[1]-used[0])>>10, float64(used[0])/(1<<20),
		float64(used[1])/(1<<20))}, nil
}

// pullTimeout bounds how long a server may take to pull the image.
const pullTimeout = 3 * time.Minute

// usage returns the blocks of all files below a folder, in bytes.
func usage(folder string) (bytes int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes, err
}

// ignoreMissing accepts that a file goes away while a folder is read.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
