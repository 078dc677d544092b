package oci

import (
	"context"
	"errors"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// An addition is an image on its way into the store.
type addition struct {
	store    *Store
	from     source
	called   string // the name that it gets
	want     v1.Platform
	progress *progress

	manifest v1.Descriptor
	document *document
	config   *v1.ConfigFile
}

// add gets the image that a manifest or an index describes, and gives it a name.
func (a *addition) add(ctx context.Context, root v1.Descriptor) (Image, error) {
	if err := a.resolve(ctx, root, 0); err != nil {
		return Image{}, err
	}
	if err := a.getConfig(ctx); err != nil {
		return Image{}, err
	}
	if err := a.getRootfs(ctx); err != nil {
		return Image{}, err
	}
	a.manifest.Platform = &v1.Platform{OS: a.want.OS, Architecture: a.want.Architecture}
	if err := a.store.giveName(ctx, a.called, a.manifest); err != nil {
		return Image{}, err
	}
	image, there, err := a.store.Get(a.called)
	if err == nil && !there {
		err = fault.New(fault.NotFound, "the image %s was removed while it was being added", a.called)
	}
	return image, err
}

// resolve finds the manifest of the platform, and stores it.
func (a *addition) resolve(ctx context.Context, d v1.Descriptor, depth int) error {
	raw, err := a.from.manifest(ctx, d)
	if err != nil {
		return err
	}
	what := a.what()
	doc, err := parseDocument(raw, what)
	if err != nil {
		return err
	}
	if !doc.isIndex() {
		digest, err := a.store.writeDocument(raw)
		a.manifest = v1.Descriptor{MediaType: mediaTypeOf(doc), Digest: digest, Size: int64(len(raw))}
		a.document = doc
		return err
	}
	if depth == maxNesting {
		return malformed(what, "its index leads to over %d others", maxNesting)
	}
	next, err := choose(doc.Manifests, a.want, what)
	if err != nil {
		return err
	}
	if err := checkDescriptor(next, maxDocument, what); err != nil {
		return err
	}
	return a.resolve(ctx, next, depth+1)
}

// getConfig reads the config, checks it, and stores it.
func (a *addition) getConfig(ctx context.Context) error {
	what := a.what()
	d := *a.document.Config
	raw, err := a.readBlob(ctx, d)
	if err != nil {
		return err
	}
	if err := checkDocument(raw, d, what); err != nil {
		return err
	}
	if a.config, err = parseConfig(raw, len(a.document.Layers), what); err != nil {
		return err
	}
	if err := checkPlatform(a.config, a.want, what); err != nil {
		return err
	}
	_, err = a.store.writeDocument(raw)
	return err
}

// readBlob reads a small blob.
func (a *addition) readBlob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if raw, err := a.store.readDocument(d.Digest); err == nil {
		return raw, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.store.retry.document)
	defer cancel()
	body, _, err := a.from.blob(ctx, d, 0)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, d.Size+1))
	return raw, err
}

// getRootfs makes the image's root file system, unless the store has it. Who makes it holds a lock; others wait, and
// find it there.
func (a *addition) getRootfs(ctx context.Context) (err error) {
	s, path := a.store, a.store.rootfsPath(a.manifest.Digest)
	held, err := lock(ctx, s.partialPath(a.manifest.Digest.Hex+".erofs"), exclusive)
	if err != nil {
		return s.diskError(err)
	}
	defer held.Close()
	if _, err := s.checkRootfs(a.manifest.Digest); err == nil {
		for _, l := range a.document.Layers {
			a.progress.tell(Progress{Layer: l.Digest.String(), Stage: Present, Done: l.Size, Total: l.Size})
		}
		return os.Remove(held.Name())
	}
	defer func() {
		if err != nil { // it cannot be continued: the blobs can
			err = errors.Join(err, os.Remove(held.Name()))
		}
	}()
	if err := a.fill(ctx, held); err != nil {
		return err
	}
	if err := held.Sync(); err != nil {
		return s.diskError(err)
	}
	if !isFile(path) { // nothing, or what is no root file system
		if err := os.RemoveAll(path); err != nil {
			return s.diskError(err)
		}
	}
	return s.diskError(os.Rename(held.Name(), path))
}

// fill transfers the layers, and at the same time merges them into the file of the root file system.
func (a *addition) fill(ctx context.Context, file *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, groupCtx := errgroup.WithContext(ctx)
	byDigest := map[v1.Hash]*transfer{}
	var layers []*layer
	for i, d := range a.document.Layers {
		t := byDigest[d.Digest]
		if t == nil {
			t = a.store.newTransfer(a.from, d, a.progress.tell)
			byDigest[d.Digest] = t
			group.Go(func() error { return t.run(groupCtx) })
		}
		layers = append(layers, &layer{open: t.reader, diffID: a.config.RootFS.DiffIDs[i]})
	}
	defer func() {
		for _, t := range byDigest {
			_ = t.close() // what it holds is in the store, or stays a partial file
		}
	}()
	unpacked := unpack(groupCtx, file, layers, a.what())
	bad := unpacked != nil && groupCtx.Err() == nil // the layers are, and not their transfer
	for _, t := range byDigest {
		bad = bad && t.failure() == nil // a reader learns of it before the group does
	}
	resumed, restarted := originOf(byDigest)
	canceled := bad && !resumed && !restarted
	if canceled {
		cancel() // no need to load the rest; where some is of an earlier transfer, the digest says whose fault it is
	}
	loaded := group.Wait()
	_, restarted = originOf(byDigest)
	for _, t := range byDigest {
		if bad && t.partial && !atomicfile.IsDiskFull(unpacked) { // nobody shall go on from what may have made the image bad
			loaded = errors.Join(loaded, t.discard())
		}
	}
	switch {
	case unpacked == nil, loaded != nil && !canceled:
		return loaded
	case restarted: // what was unpacked was of a damaged partial download
		unpacked = unpack(ctx, file, layers, a.what())
	}
	if atomicfile.IsDiskFull(unpacked) {
		return a.store.diskError(unpacked)
	}
	return unpacked
}

// originOf returns whether any transfer was resumed, and whether any was restarted.
func originOf(transfers map[v1.Hash]*transfer) (resumed, restarted bool) {
	for _, t := range transfers {
		has, again := t.origin()
		resumed, restarted = resumed || has, restarted || again
	}
	return resumed, restarted
}

// what returns the image and its source for messages.
func (a *addition) what() string { return a.called + " of " + a.from.String() }
