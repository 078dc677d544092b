package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/oci"
	"sandlot/internal/sandbox"
)

// Store implements sandbox.Images with an image store, for a runtime that has no images of its own.
type Store struct {
	Images *oci.Store
	Files  sandbox.Files // of the runtime
}

// Image implements sandbox.Images.
func (s Store) Image(ctx context.Context, ref string, progress func(sandbox.Progress)) (sandbox.Image, error) {
	i, found, err := s.Images.Get(ref)
	if err != nil {
		return sandbox.Image{}, err
	}
	if !found && strings.HasPrefix(ref, "sha256:") {
		return sandbox.Image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	if !found {
		if progress == nil {
			progress = func(sandbox.Progress) {}
		}
		progress(sandbox.Progress{Step: "getting the image " + ref})
		var all oci.Transfer
		i, err = s.Images.Pull(ctx, ref, oci.Options{Progress: func(p oci.Progress) {
			all.Add(p)
			if done, total := all.Bytes(); total > 0 {
				progress(sandbox.Progress{Step: fmt.Sprintf("getting the image %s: %d of %d MB", ref, done>>20,
					(total+1<<20-1)>>20), Done: done, Total: total})
			}
		}})
		if err != nil {
			return sandbox.Image{}, err
		}
	}
	return usable(i, ref)
}

// Find implements sandbox.Images.
func (s Store) Find(_ context.Context, ref string) (sandbox.Image, error) {
	i, found, err := s.Images.Find(ref)
	if err != nil {
		return sandbox.Image{}, err
	}
	if !found {
		return sandbox.Image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	return usable(i, ref)
}

// usable returns an image, or an error if it is for another architecture.
func usable(i oci.Image, ref string) (sandbox.Image, error) {
	own := "linux/" + runtime.GOARCH
	if i.Platform != "" && i.Platform != own && !strings.HasPrefix(i.Platform, own+"/") {
		return sandbox.Image{}, fault.New(fault.InvalidParameters,
			"the image %s is for %s, and this machine is %s; get "+
				"the one for it: sandlot image pull --platform %[3]s %[1]s", ref, i.Platform, own)
	}
	return imageOf(i), nil
}

func imageOf(i oci.Image) sandbox.Image {
	return sandbox.Image{ID: i.Digest, Rootfs: i.Rootfs, User: i.Config.User, Workdir: i.Config.Workdir,
		Env: i.Config.Env}
}

// Save implements sandbox.Images.
func (s Store) Save(ctx context.Context, b sandbox.Sandbox, name string) (sandbox.Image, error) {
	read, write := io.Pipe()
	layer, filtered := io.Pipe()
	exported, copied := make(chan error, 1), make(chan error, 1)
	go func() {
		err := s.Files.Export(ctx, b, write)
		write.CloseWithError(err)
		exported <- err
	}()
	go func() {
		err := filterLayer(filtered, read, b.Spec().Template.Files)
		filtered.CloseWithError(err)
		read.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		copied <- err
	}()
	i, err := s.Images.Extend(ctx, b.Spec().Template.ImageID, layer, name)
	layer.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	copyErr := <-copied
	exportErr := <-exported
	if err == nil {
		err = errors.Join(copyErr, exportErr)
	}
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("saving what was written: %w", err)
	}
	return imageOf(i), nil
}

// RemoveSaved implements sandbox.Images. Sandboxes that run have their image's file open.
func (s Store) RemoveSaved(ctx context.Context, keep func(name, id string) bool) error {
	list, err := s.Images.List()
	for _, i := range list {
		if IsBuild(i.Name) && !keep(i.Name, i.Digest) {
			_, removeErr := s.Images.Remove(ctx, i.Name, nil)
			err = errors.Join(err, removeErr)
		}
	}
	return err
}

// filterLayer makes a layer of an image out of the upper layer of an overlay: it leaves out what is not saved, and
// writes whiteouts as images have them.
func filterLayer(to io.Writer, from io.Reader, mounted map[string][]byte) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	whiteouts := map[string]bool{} // by their names: the archive has further ones as hard links to the first
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading what the sandbox has written: %w", err)
		}
		isLink := h.Typeflag == tar.TypeLink
		isWhiteout := h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
		if isWhiteout || isLink && whiteouts[cleanName(h.Linkname)] {
			if len(whiteouts) == maxWhiteouts {
				return fmt.Errorf("the sandbox has removed more than %d files", maxWhiteouts)
			}
			whiteouts[cleanName(h.Name)], isLink = true, false
		}
		if !isSaved(h.Name, mounted) || isLink && !isSaved(h.Linkname, mounted) {
			continue
		}
		if whiteouts[cleanName(h.Name)] {
			err = writeWhiteout(out, h.Name)
		} else {
			err = writeEntry(out, h, in)
		}
		if err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, from) // the padding after the archive's end
	return err
}

// maxWhiteouts bounds the files that a layer removes.
const maxWhiteouts = 1 << 20

// writeWhiteout writes that a file of a lower layer is removed.
func writeWhiteout(out *tar.Writer, name string) error {
	name = cleanName(name)
	return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Mode: 0o644,
		Name: path.Join(path.Dir(name), ".wh."+path.Base(name))})
}

// opaqueXattr marks a folder in the upper layer of an overlay that hides the one below.
const opaqueXattr = "SCHILY.xattr.trusted.overlay.opaque"

func writeEntry(out *tar.Writer, h *tar.Header, content io.Reader) error {
	name := cleanName(h.Name)
	isOpaque := h.Typeflag == tar.TypeDir && h.PAXRecords[opaqueXattr] == "y"
	kept := &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode,
		Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Devmajor: h.Devmajor, Devminor: h.Devminor,
		PAXRecords: map[string]string{}}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") && !strings.HasPrefix(key, "SCHILY.xattr.trusted.") {
			kept.PAXRecords[key] = value
		}
	}
	if err := out.WriteHeader(kept); err != nil {
		return err
	}
	if isOpaque {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, ".wh..wh..opq"), Mode: 0o644})
	}
	_, err := io.Copy(out, content)
	return err
}

// cleanName returns the name of an entry relative to the root, without "." and "..".
func cleanName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// isSaved says whether an entry becomes part of an image. Mounted are the files that are mounted in the sandbox.
func isSaved(name string, mounted map[string][]byte) bool {
	name = cleanName(name)
	if _, isMountPoint := mounted[name]; isMountPoint {
		return false
	}
	return config.NotKept("/"+name) == ""
}
