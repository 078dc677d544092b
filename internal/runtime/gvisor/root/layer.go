package root

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sandlot/internal/cacerts"
	"sandlot/internal/image"
	"sandlot/internal/oci/rootfs"
	"sandlot/internal/sandbox"
)

// A layer is what Sandlot puts over the root file system of an image: mount points that the image lacks, the files
// that depend on the sandbox (/etc/resolv.conf …), and the template's own files. gVisor unpacks it into the layer
// that a sandbox writes, before the sandbox starts: neither the image nor another sandbox sees it.
//
// The image is hostile: its links are followed inside the image only, and its directories keep their modes and
// owners.
type layer struct {
	image   *rootfs.Image
	time    time.Time              // of the files
	entries map[string]*tar.Header // by path in the image, without links
	content map[string][]byte      // of the regular files
}

// maxLinks bounds the symbolic links on the way to one path.
const maxLinks = 40

var errNoFolder = errors.New("it is not a folder")

// buildLayer returns the layer for a template as a tar archive.
func buildLayer(i *rootfs.Image, t *image.Template, files map[string]string, now time.Time) ([]byte, error) {
	l := &layer{image: i, time: now, entries: map[string]*tar.Header{}, content: map[string][]byte{}}
	for _, f := range imageFolders {
		if err := l.addFolder(f); err != nil {
			return nil, refuse("folder", f.Name, err)
		}
	}
	if err := l.checkPlaces(); err != nil {
		return nil, err
	}
	l.addHome(t.User)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at, err := l.resolve(path.Dir(name))
		if err != nil {
			return nil, refuse("file", name, err)
		}
		l.addFile(path.Join(at, path.Base(name)), []byte(files[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Files)) {
		if at, ok := l.placeFor(name); ok {
			l.addFile(at, t.Files[name])
		}
	}
	return l.archive()
}

// refuse returns the error for an image in which a folder or file of Sandlot's has no place, in words for the users of
// the template.
func refuse(what, name string, err error) error {
	return sandbox.Explain(fmt.Sprintf("a sandbox of the image needs a %s /%s: %v; make it a folder in the image", what, name,
		err), err)
}

// imageFolders are the folders that each sandbox of an image needs.
var imageFolders = []tar.Header{{Name: "tmp", Mode: 0o1777}, {Name: "var/tmp", Mode: 0o1777},
	{Name: "proc", Mode: 0o755}, {Name: "sys", Mode: 0o755}, {Name: "dev", Mode: 0o755},
	{Name: "run/sandlot", Mode: 0o755},
	{Name: "workspace", Mode: 0o755}, {Name: "var/lib/sandlot", Mode: 0o755}, {Name: ".sandlot", Mode: 0o755}}

// mountPoints are the folders at which each sandbox has something mounted.
var mountPoints = []string{"proc", "sys", "dev", "run/sandlot", "workspace", ".sandlot"}

// checkPlaces returns an error if a link of the image brings one of them to the place of another one, or above it: then
// one would hide the other.
func (l *layer) checkPlaces() error {
	places := map[string]string{}
	for _, name := range mountPoints {
		at, err := l.resolve(name)
		if err != nil {
			return refuse("folder", name, err)
		}
		places[name] = at
	}
	for _, name := range mountPoints {
		for _, other := range mountPoints {
			at, hidden := places[name], places[other]
			if name == other || at != "." && hidden != at && !strings.HasPrefix(hidden, at+"/") {
				continue
			}
			return refuse("folder", name, fmt.Errorf("a symbolic link leads from it to %s, where the sandbox has /%s", path.Join("/", at), other))
		}
	}
	return nil
}

// addHome adds the home folder of the user, if there can be one.
func (l *layer) addHome(u image.User) {
	home := strings.TrimPrefix(path.Clean("/"+u.Home), "/")
	if u.Home == "" && u.IsRoot() {
		home = "root"
	}
	if home != "" {
		_ = l.addFolder(tar.Header{Name: home, Mode: 0o700, Uid: int(u.UID), Gid: int(u.GID)})
	}
}

// resolve returns the path in the image, without links, of a folder that the image or the layer has, or that
// addParents will make.
func (l *layer) resolve(name string) (string, error) {
	done, links := ".", 0
	for rest := name; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := l.image.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := l.image.ReadLink(next)
			if links++; err != nil || links > maxLinks {
				return "", errors.Join(err, fmt.Errorf("/%s is one of too many symbolic links", next))
			}
			if strings.HasPrefix(target, "/") {
				done = "."
			}
			rest = target + "/" + rest
			continue
		case !info.IsDir():
			return "", fmt.Errorf("/%s: %w", next, errNoFolder)
		}
		done = next
	}
	return done, nil
}

// addFolder adds a folder, unless the image has it.
func (l *layer) addFolder(h tar.Header) error {
	at, err := l.resolve(h.Name)
	if err != nil {
		return err
	}
	if _, err := l.image.Lstat(at); err == nil {
		return nil
	}
	l.addParents(at)
	h.Typeflag, h.ModTime = tar.TypeDir, l.time
	l.entries[at] = &h
	return nil
}

// placeFor returns where one of the template's files goes, in the image's own paths. There is no place where no
// program of the image looks: in a folder that the image lacks, except for /etc and one directly below it. A link to
// another of the files stays.
func (l *layer) placeFor(name string) (string, bool) {
	if cacerts.IsHashedName(name) {
		return "", false
	}
	dir, err := l.resolve(path.Dir(name))
	if err != nil {
		return "", false
	}
	if _, err := l.image.Lstat(dir); err != nil && path.Dir(name) != "etc" && path.Dir(path.Dir(name)) != "etc" {
		return "", false
	}
	at := path.Join(dir, path.Base(name))
	info, err := l.image.Lstat(at)
	return at, errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular()
}

// addFile adds a file in place of whatever the image has there.
func (l *layer) addFile(at string, content []byte) {
	l.addParents(at)
	l.entries[at] = &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, ModTime: l.time, Size: int64(len(content))}
	l.content[at] = content
}

// addParents adds the folders above a path: gVisor wants all of them in the archive. Those of the image stay as
// they are.
func (l *layer) addParents(at string) {
	for at != "." {
		at = path.Dir(at)
		if l.entries[at] != nil {
			return
		}
		h := &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, ModTime: l.time}
		if info, err := l.image.Lstat(at); err == nil {
			s := info.Sys().(*rootfs.Stat)
			h.Mode, h.Uid, h.Gid, h.ModTime = int64(s.Mode&0o7777), int(s.UID), int(s.GID), info.ModTime()
		}
		l.entries[at] = h
	}
}

// archive writes the layer as gVisor reads it: names begin with ./, those of folders end with /. Files with the
// same content are hard links to the first of them.
func (l *layer) archive() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	l.addParents("./x") // the root itself
	first := map[string]string{}
	for _, at := range slices.Sorted(maps.Keys(l.entries)) {
		h := *l.entries[at]
		h.Name = "./" + at
		content := l.content[at]
		switch {
		case at == ".":
			h.Name = "./"
		case h.Typeflag == tar.TypeDir:
			h.Name += "/"
		case len(content) > 0 && first[string(content)] != "":
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeLink, first[string(content)], 0, nil
		default:
			first[string(content)] = h.Name
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
