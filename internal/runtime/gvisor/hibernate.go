package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/runtime/graft"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/runtime/gvisor/frozen"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/pinned"
	"sandlot/internal/runtime/socket"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/toolfolder"
)

// keptPrograms are paths of programs that are kept for a sandbox: both for one that was made of a frozen image, and
// gVisor's for one that was frozen, whose processes another version might not understand. Empty: those of Config.
type keptPrograms struct {
	Runsc string `json:"runsc"`
	Agent string `json:"agent"`
}

const (
	bundleFile = "config.json"
	agentName  = "sandlot-agent"
	// frozenMark is a file in the folder of a sandbox that stands still, or is about to.
	frozenMark = "frozen"
	// freezeTimeout is how long gVisor may take to write a sandbox. One whose programs keep all processors busy
	// takes seconds.
	freezeTimeout = 30 * time.Second
	// resumePause is how long Thaw waits for the machine to have room for a process.
	resumePause = 200 * time.Millisecond
)

// SealImages implements sandbox.Freezer.
func (r *Runtime) SealImages(keys sandbox.ImageKeys, seal bool) {
	r.frozen.Keys, r.frozen.Seal = keys, seal
}

// CanHibernate implements sandbox.Freezer.
func (r *Runtime) CanHibernate() error {
	if r.HostNetwork {
		return errors.New("gVisor restores nothing with the machine's own network (network.mode: open)")
	}
	return nil
}

// Freeze implements sandbox.Freezer.
func (r *Runtime) Freeze(ctx context.Context, sb sandbox.Sandbox, owner string,
	maxBytes int64) (image sandbox.FrozenImage, err error) {
	b, ok := sb.(*box)
	if !ok {
		return image, errors.New("gvisor: this sandbox is another runtime's")
	}
	if err := r.CanHibernate(); err != nil {
		return image, err
	}
	name := secret.ID()
	info, err := r.frozen.Make(name, func() (frozen.Info, error) {
		host, err := hostFeatures()
		if err != nil {
			return frozen.Info{}, err
		}
		info := frozen.Info{Owner: owner, Host: host, Platform: b.platform, Made: time.Now().UTC()}
		err = r.keepPrograms(b, &info)
		return info, err
	}, func(dir string, info *frozen.Info) (bundle []byte, err error) {
		ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
		defer cancel()
		if err := os.WriteFile(filepath.Join(b.dir, frozenMark), nil, 0o600); err != nil {
			return nil, err
		}
		// gVisor writes connections to the host as closed ones, and wakes nobody who waits for them: the agent would
		// wait for ever after Thaw. Without a socket it has none, and dials in vain.
		b.unlisten()
		err = r.runRunsc(ctx, b, "pause", b.spec.ID)
		if err != nil && !strings.Contains(err.Error(), "in state paused") {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w: %w", sandbox.ErrLater, ctx.Err(), err)
			}
			return nil, shorten(err)
		}
		if bundle, err = os.ReadFile(filepath.Join(b.dir, bundleFile)); err == nil {
			err = r.writeFrozen(ctx, b, info, bundle, dir, maxBytes)
		}
		if err != nil && ctx.Err() != nil { // that says nothing about the sandbox
			err = fmt.Errorf("%w: %w: %w", sandbox.ErrLater, ctx.Err(), err)
		}
		return bundle, shorten(err)
	})
	if errors.Is(err, sandbox.ErrNoProcess) {
		err = fmt.Errorf("%w: %w", sandbox.ErrLater, sandbox.ErrNoProcess)
	}
	if err != nil {
		return image, later(err)
	}
	return sandbox.FrozenImage{Name: name, Bytes: info.Bytes, Made: info.Made, Unkept: info.Unkept()}, nil
}

// writeFrozen writes the image of a sandbox that stands still. info says of what it is, and becomes complete.
func (r *Runtime) writeFrozen(ctx context.Context, b *box, info *frozen.Info, text []byte, dir string,
	maxBytes int64) error {
	bundle := new(specs.Spec)
	if err := json.Unmarshal(text, bundle); err != nil {
		return err
	}
	spec := b.Spec()
	info.Record, info.Rootfs = specfile.Of(spec, ""), b.root.Image
	info.Record.Secret = ""
	need, err := r.hasSpace(b, maxBytes)
	if err != nil {
		return err
	}
	info.InUse = need
	defer b.tools.Hold()()
	pid, _ := b.process()
	if err := hostfile.KeepTools(pid, socket.ToolsDir(b.socketDir()), filepath.Join(dir, frozen.ToolsDir)); err != nil {
		return err
	}
	takeBack := func() error { return nil }
	if info.Sealed { // else gVisor's files are on the disk
		takeBack = b.lendMemory(need)
	}
	err = r.frozen.WriteFiles(ctx, dir, info, need, func(dir string) error {
		if err := r.runBound(ctx, b, "checkpoint", "-image-path", dir, "-leave-running", "-compression", "none",
			"-exclude-committed-zero-pages", spec.ID); err != nil {
			return explainFrozen(err)
		}
		return nil
	})
	if err = errors.Join(err, takeBack()); err != nil {
		return err
	}
	// gVisor has closed by now what no program needs.
	files, err := b.hostFiles(bundle.Root.Path, frozenMounts(withGrafts(bundle.Mounts, graft.Of(bundle.Annotations)), spec.Mounts)).Files()
	if err != nil {
		return err
	}
	if info.Files, err = r.keepFiles(ctx, info.KeepFile, files, b.root.Image); err != nil {
		return err
	}
	if err := info.Measure(dir); err != nil {
		return err
	}
	if info.Bytes > maxBytes {
		return tooLarge(info.Bytes, maxBytes)
	}
	return frozen.SyncMounts(spec.Mounts)
}

// lendMemory lets the sandbox's group have bytes more until takeBack is called: gVisor's files that are in memory count
// for the sandbox, which writes them. Its programs stand still.
func (b *box) lendMemory(bytes int64) (takeBack func() error) {
	more := b.Spec().Limits
	if !b.cgroups.Usable() || more.MemoryBytes == 0 {
		return func() error { return nil }
	}
	more.MemoryBytes += bytes
	err := b.cgroups.Resize(b.spec.ID, more)
	return func() error { // the limits may be others by then
		if err != nil {
			return errors.Join(err, b.cgroups.Resize(b.spec.ID, b.Spec().Limits))
		}
		for try := 0; ; try++ { // the kernel frees what the files had in its own time, and refuses a lower limit until then
			err := b.cgroups.Resize(b.spec.ID, b.Spec().Limits)
			if !errors.Is(err, unix.EBUSY) || try == maxTakeBack {
				return err
			}
			time.Sleep(takeBackInterval)
		}
	}
}

// takeBackInterval is the time between two tries of lowering a limit, of which there are at most maxTakeBack.
const takeBackInterval, maxTakeBack = 50 * time.Millisecond, 200

// explainFrozen says of an error of gVisor's checkpoint that it is about files of the machine which were replaced: gVisor
// writes no file that is open, that another one has replaced, and whose name a program has looked up since.
func explainFrozen(err error) error {
	err = hostfile.ExplainTools(err)
	if !errors.As(err, new(*sandbox.Explained)) && strings.Contains(err.Error(), "invalidated dentries can't be saved") {
		return fmt.Errorf("%w: %w: %w", sandbox.ErrLater, sandbox.ErrReplaced, shorten(err))
	}
	return err
}

// maxKeptBytes and maxKeptFiles bound what is kept for one image, of which the user chooses what is open: each file costs
// writes to the disk while the sandbox stands still. frozen.Keeping bounds what one owner has of the store.
const maxKeptBytes, maxKeptFiles = 512 << 20, 500

// keepFiles keeps the files of the machine that a sandbox has open, so that it also wakes after they were replaced. One
// for which there is no room is needed as it is; those that programs run come first. keep keeps the file that a path
// opens, and returns its SHA-256.
func (r *Runtime) keepFiles(ctx context.Context, keep func(from string) (sum string, err error), files []hostfile.File,
	image string) (needed []hostfile.Needed, err error) {
	slices.SortFunc(files, func(x, y hostfile.File) int {
		return cmp.Or(boolOrder(x.Replaced, y.Replaced), boolOrder(runs(x), runs(y)), cmp.Compare(x.Size, y.Size))
	})
	var bytes uint64
	kept, failed, left, why := 0, 0, 0, error(nil)
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		sum := ""
		switch regular := f.IsRegular() && f.Path != image; {
		case regular && !f.Replaced && (kept >= maxKeptFiles || failed >= maxKeptFiles || bytes+f.Size > maxKeptBytes):
			left, why = left+1, fmt.Errorf("one session may have %d files and %d MB", maxKeptFiles, maxKeptBytes>>20)
		case regular:
			sum, err = keepFile(keep, &f)
			if err == nil {
				kept, bytes = kept+1, bytes+f.Size
			} else if !f.Replaced { // what is not kept leaves its room to others
				failed, left, why, err = failed+1, left+1, err, nil
			}
		case f.Replaced && !f.IsFolder():
			err = errors.New("another one is in its place")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: keeping %s, which a program has open: %w", sandbox.ErrReplaced, f.Path, err)
		}
		n := f.Needed()
		n.Sum = sum
		needed = append(needed, n)
	}
	if left > 0 {
		r.Log.Warn("files of the machine that a session has open are not kept: the session does not wake if one of them "+
			"is replaced while it sleeps", "files", left, "of", len(files), "error", why)
	}
	return needed, nil
}

// keepTries is how often a file is kept that changes meanwhile.
const keepTries = 3

// keepFile keeps a file, and returns its SHA-256. f becomes the state in which it was kept: it may have changed since it
// was listed.
func keepFile(keep func(from string) (sum string, err error), f *hostfile.File) (sum string, err error) {
	for range keepTries {
		sum, err = keep(f.Open)
		now, statErr := hostfile.Stat(f.Open, true)
		if statErr != nil {
			return "", statErr
		}
		if now.Size == f.Size && now.Modified == f.Modified {
			return sum, err
		}
		f.Size, f.Modified = now.Size, now.Modified
	}
	if err == nil {
		err = fmt.Errorf("%s changes all the time", f.Path)
	}
	return "", err
}

// runs reports whether a file seems to be a program or a library.
func runs(f hostfile.File) bool {
	return f.Mode&0o111 != 0 || strings.Contains(filepath.Base(f.Path), ".so")
}

// boolOrder orders what is true first.
func boolOrder(x, y bool) int {
	if x == y {
		return 0
	} else if x {
		return -1
	}
	return 1
}

// frozenMounts are the mounts of a bundle; those whose files may change while the sandbox is frozen are not marked as
// read-only.
func frozenMounts(all []specs.Mount, own []sandbox.Mount) []specs.Mount {
	all = slices.Clone(all)
	for i, m := range all {
		if isOwnMount(m.Destination, own) {
			all[i].Options = nil
		}
	}
	return all
}

// keepPrograms keeps the programs that a sandbox runs on, which may have been replaced since it started, and puts them
// into info. From then on gVisor's commands for the sandbox are of that version.
func (r *Runtime) keepPrograms(b *box, info *frozen.Info) (err error) {
	pid, _ := b.process()
	name := filepath.Base(r.Runsc)
	if info.Runsc, err = r.frozen.Programs.Keep(fmt.Sprintf("/proc/%d/exe", pid), name); err != nil {
		return err
	}
	path := r.frozen.Programs.Path(info.Runsc, name)
	if info.GVisor, err = frozen.GVisorVersion(path); err != nil {
		return err
	}
	if err := b.useRunsc(path); err != nil {
		return err
	}
	open, err := hostfile.OpenBy(pid)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(open, func(f hostfile.Open) bool {
		return strings.TrimSuffix(f.Target, " (deleted)") == hostfile.GoferRoot+wire.AgentPath
	})
	if i < 0 {
		return errors.New("the sandbox does not have its agent open")
	}
	info.Agent, err = r.frozen.Programs.Keep(open[i].Path, agentName)
	return err
}

// useRunsc makes gVisor's commands for the sandbox be of that program.
func (b *box) useRunsc(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept.Runsc == path {
		return nil
	}
	b.kept.Runsc = path
	return specfile.Write(b.dir, b.record())
}

// runsc returns the program of gVisor's commands for the sandbox.
func (b *box) runsc() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if isFile(b.kept.Runsc) {
		return b.kept.Runsc
	}
	return b.runtime.Runsc
}

// hasSpace returns how large the image of a sandbox becomes, at most about, and an error if it is too large, or does not
// fit on the disk.
func (r *Runtime) hasSpace(b *box, maxBytes int64) (need int64, err error) {
	pid, _ := b.process()
	open, err := hostfile.OpenBy(pid)
	if err != nil {
		return 0, err
	}
	seen := map[uint64]bool{}
	for _, f := range open { // the memory, and what was written outside the mounts
		var st unix.Stat_t
		if (strings.HasPrefix(f.Target, memoryFile) || strings.HasPrefix(f.Target, filepath.Join(b.dir, "disk"))) &&
			unix.Stat(f.Path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			need += st.Blocks * 512
		}
	}
	if need > maxBytes {
		return need, tooLarge(need, maxBytes)
	}
	return need, r.frozen.HasRoom(need)
}

func tooLarge(bytes, limit int64) error {
	return &sandbox.Explained{Limit: true, Words: fmt.Sprintf("its memory and its files outside the workspace have %d "+
		"MB, and %d MB are allowed (hibernate.max_image_mb)", bytes>>20, limit>>20)}
}

// maxReason bounds the text of an error of gVisor, which may have a stack of calls.
const maxReason = 400

// later says of an error of a machine that cannot read or write at the moment that the same may work later: it is no
// verdict about a sandbox or an image.
func later(err error) error {
	if errors.Is(err, sandbox.ErrLater) || !atomicfile.IsPassing(err) {
		return err
	}
	return fmt.Errorf("%w: %w", sandbox.ErrLater, err)
}

// shorten returns the first line of an error's text, bounded. What can be done later stays that.
func shorten(err error) error {
	if e, ok := errors.AsType[*sandbox.Explained](err); ok && err == error(e) {
		e.Cause = shorten(e.Cause)
		return e
	}
	if err == nil || errors.As(err, new(*sandbox.Explained)) || errors.Is(err, sandbox.ErrLater) ||
		errors.Is(err, sandbox.ErrNoProcess) || errors.Is(err, sandbox.ErrReplaced) || atomicfile.IsPassing(err) {
		return err
	}
	text, _, cut := strings.Cut(err.Error(), "\n")
	if len(text) <= maxReason && !cut {
		return err
	}
	return errors.New(text[:min(len(text), maxReason)])
}

// unlisten removes the socket that the agent dials.
func (b *box) unlisten() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.socket != nil {
		b.socket.Close()
		b.socket = nil
	}
	os.Remove(filepath.Join(b.socketDir(), wire.Socket))
}

// Thaw implements sandbox.Freezer.
func (r *Runtime) Thaw(ctx context.Context, sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok {
		return errors.New("gvisor: this sandbox is another runtime's")
	}
	mark := filepath.Join(b.dir, frozenMark)
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) && b.listens() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	_ = b.lendMemory(0)() // a server that was killed may have lent some; what stands still goes on in any case
	passes := func(err error) bool { return errors.Is(err, sandbox.ErrNoProcess) || atomicfile.IsPassing(err) }
	err := r.resume(ctx, b)
	for passes(err) && ctx.Err() == nil {
		time.Sleep(resumePause) // what stands still would be lost
		err = r.resume(ctx, b)
	}
	switch {
	case err != nil && passes(err):
		return fmt.Errorf("%w: %w", sandbox.ErrLater, err)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), shorten(err))
	case err != nil:
		return shorten(err)
	}
	r.background.Go(b.wakeAgent)
	if err := os.Remove(mark); !errors.Is(err, fs.ErrNotExist) {
		return later(err)
	}
	return nil
}

// listens reports whether the server listens at the socket that the agent dials.
func (b *box) listens() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.socket != nil
}

// resume lets a sandbox go on, at whose socket the server listens then.
func (r *Runtime) resume(ctx context.Context, b *box) error {
	if !b.listens() {
		if err := b.listen(); err != nil {
			return err
		}
	}
	err := r.runRunsc(ctx, b, "resume", b.spec.ID)
	if err != nil && strings.Contains(err.Error(), "in state running") { // it was not stopped yet
		return nil
	}
	return err
}

// Wake implements sandbox.Freezer.
func (r *Runtime) Wake(ctx context.Context, spec sandbox.Spec, image string) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("gvisor: the spec is incomplete")
	}
	defer r.frozen.Use(image)()
	info, bundle, err := r.frozen.Read(image)
	if err != nil {
		return nil, later(err)
	}
	pins, err := r.checkFrozen(info, bundle, spec)
	if err != nil {
		return nil, later(err)
	}
	agent, runsc, err := r.findPrograms(info)
	if err != nil {
		return nil, later(err)
	}
	spec.Limits = info.Record.Limits
	b := newBox(r, spec)
	b.kept, b.root.Image, b.root.Path = keptPrograms{Runsc: runsc, Agent: agent}, info.Rootfs, bundle.Root.Path
	if err := errors.Join(os.MkdirAll(r.sandboxesDir(), 0o700), os.Mkdir(b.dir, 0o700)); err != nil {
		return nil, later(fmt.Errorf("making the sandbox's folder: %w", err))
	}
	b.platform = cmp.Or(info.Platform, systrap)
	b.adapt(bundle)
	if err = pinned.Write(b.dir, pins); err == nil {
		err = r.frozen.Unpacked(ctx, image, info, func(dir string) error {
			return r.wake(ctx, b, bundle, dir, r.frozen.Tools(image))
		})
	}
	if err != nil && ctx.Err() != nil { // that says nothing about the image
		err = fmt.Errorf("%w: %w: %w", sandbox.ErrLater, ctx.Err(), err)
	}
	if err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if stopErr := b.Stop(stopCtx); stopErr != nil {
			return nil, errors.Join(later(shorten(err)), sandbox.ErrRemains, stopErr)
		}
		return nil, later(shorten(err))
	}
	return b, nil
}

// CanWake implements sandbox.Freezer.
func (r *Runtime) CanWake(_ context.Context, spec sandbox.Spec, image string) error {
	if err := r.CanHibernate(); err != nil {
		return err
	}
	defer r.frozen.Use(image)()
	info, bundle, err := r.frozen.Read(image)
	if err == nil {
		_, err = r.checkFrozen(info, bundle, spec)
	}
	if err == nil {
		err = r.frozen.CanOpen(image, info)
	}
	if err == nil {
		_, _, err = r.findPrograms(info)
	}
	return later(err)
}

// FrozenNeeds implements sandbox.Freezer.
func (r *Runtime) FrozenNeeds(_ context.Context, image string) (has sandbox.Limits, inUse int64, err error) {
	defer r.frozen.Use(image)()
	info, _, err := r.frozen.Read(image)
	return info.Record.Limits, info.InUse, later(err)
}

// findPrograms returns the kept programs of an image.
func (r *Runtime) findPrograms(i frozen.Info) (agent, runsc string, err error) {
	if agent, err = r.frozen.Programs.Find(i.Agent, agentName); err == nil {
		runsc, err = r.frozen.Programs.Find(i.Runsc, filepath.Base(r.Runsc))
	}
	if err != nil && !atomicfile.IsPassing(err) {
		err = sandbox.Explain("the version of Sandlot that it ran on is no longer kept", fmt.Errorf("gVisor %s: %w",
			i.GVisor, err))
	}
	return agent, runsc, err
}

// checkFrozen returns an error if a sandbox of the image would not go on where it was. Of the files that the sandbox
// had open it returns those that the machine has replaced since: the kept ones have to take their places.
func (r *Runtime) checkFrozen(i frozen.Info, bundle *specs.Spec, spec sandbox.Spec) (replaced []pinned.File, err error) {
	host, err := hostFeatures()
	if err != nil {
		return nil, err
	}
	if !slices.Equal(i.Host, host) {
		return nil, sandbox.Explain("the machine's kernel or processors have changed since it was put to sleep", nil)
	}
	if i.Record.Template != spec.Template.Name || !slices.EqualFunc(i.Record.Mounts, spec.Mounts, sameMount) {
		return nil, sandbox.Explain("its template or its shared folders have changed since it was put to sleep", nil)
	}
	if _, err := os.Stat(bundle.Root.Path); errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Explain("the files of its root file system are gone, such as when the state folder was moved", nil)
	}
	if gone := goneFolder(withGrafts(bundle.Mounts, graft.Of(bundle.Annotations)), spec.Mounts); gone != "" {
		return nil, sandbox.Explain(fmt.Sprintf("the folder %s of the machine, which it had mounted, is gone", printable(gone)),
			nil)
	}
	for _, f := range i.Files {
		changed := f.Check()
		if changed == nil {
			continue
		}
		now, err := os.Lstat(f.Path)
		if err := errors.Join(changed, err); atomicfile.IsPassing(err) {
			return nil, err
		}
		missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
		pin := pinned.File{Target: f.Target, Missing: missing}
		switch {
		case f.Target == "" || err != nil && !missing || missing && inMountPoint(f.Path, f.Target, withGrafts(bundle.Mounts, graft.Of(bundle.Annotations))):
			return nil, explainChanged(f, changed)
		case f.IsFolder() && missing:
		case f.Sum != "" && (missing || now.Mode().IsRegular()):
			pin.Kept, err = r.frozen.Files.Find(f.Sum, frozen.KeptName)
			if atomicfile.IsPassing(err) {
				return nil, err
			}
			if err != nil {
				return nil, explainChanged(f, errors.Join(changed, err))
			}
		default:
			return nil, explainChanged(f, changed)
		}
		replaced = append(replaced, pin)
	}
	return replaced, nil
}

// goneFolder returns where in a sandbox a folder of the machine was mounted that is gone; empty: none is. It is none of the
// sandbox's own.
func goneFolder(mounts []specs.Mount, own []sandbox.Mount) string {
	for _, m := range mounts {
		if m.Type != "bind" || isOwnMount(m.Destination, own) || image.IsLibrary(m.Destination) {
			continue
		}
		if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
			return m.Destination
		}
	}
	return ""
}

// isOwnMount reports whether what is mounted at a place changes while a sandbox is frozen: the agent, which is kept by its
// content, what each sandbox has of its own, and what the operator or the session shares with it.
func isOwnMount(target string, own []sandbox.Mount) bool {
	return target == wire.AgentPath || target == wire.SocketDir || target == bootIDPath ||
		slices.ContainsFunc(own, func(o sandbox.Mount) bool { return o.Target == target })
}

// explainChanged returns the error of a file that changed, and that have no copy.
func explainChanged(f hostfile.Needed, cause error) error {
	what := "a file of the machine"
	if f.Target != "" {
		what = fmt.Sprintf("a file of the machine, %s,", printable(f.Target))
	}
	return sandbox.Explain(what+" that it had open has changed, such as by an upgrade of the machine's packages, and no "+
		"copy of it was kept (sandboxes of a template with an image have no files of the machine open)", cause)
}

// printable returns a path, quoted if it has other than printable characters.
func printable(path string) string {
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

// inMountPoint reports whether the lowest folder that there is above a path, which is target in the sandbox, is where
// something is mounted: gVisor refuses another file system there. So it is if something is mounted below that folder:
// another file system in its place would hide that.
func inMountPoint(path, target string, mounts []specs.Mount) bool {
	for path, target = filepath.Dir(path), filepath.Dir(target); target != "/"; {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			break
		}
		path, target = filepath.Dir(path), filepath.Dir(target)
	}
	return target == "/" || slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return m.Destination == target || strings.HasPrefix(m.Destination, target+"/")
	})
}

// sameMount reports whether a mount can take the place of another one. A workspace may be a copy in another folder.
func sameMount(a, b sandbox.Mount) bool {
	if !a.Shared && !b.Shared && a.Source != "" && b.Source != "" {
		a.Source = b.Source
	}
	return a == b
}

// adapt makes a frozen sandbox's bundle that of b.
func (b *box) adapt(bundle *specs.Spec) {
	for i, m := range bundle.Mounts {
		if m.Type == "bind" && image.IsLibrary(m.Destination) {
			bundle.Mounts[i].Source = b.runtime.orEmpty(m.Source)
		}
		for _, own := range b.spec.Mounts {
			if own.Target == m.Destination && !own.Shared && own.Source != "" {
				bundle.Mounts[i].Source = own.Source
			}
		}
		switch m.Destination {
		case wire.AgentPath:
			bundle.Mounts[i].Source = b.kept.Agent
		case wire.SocketDir:
			bundle.Mounts[i].Source = b.socketDir()
		case bootIDPath:
			bundle.Mounts[i].Source = b.bootIDFile()
		}
	}
	bundle.Linux.CgroupsPath, bundle.Linux.Resources = "", nil
	if b.cgroups.Usable() {
		bundle.Linux.CgroupsPath = b.cgroups.OCIPath(b.spec.ID)
		bundle.Linux.Resources = cgroup.Resources(b.spec.Limits)
	}
}

// wake starts b of gVisor's files in the folder image, and gives it the tool tree in the folder tools.
func (r *Runtime) wake(ctx context.Context, b *box, bundle *specs.Spec, image, tools string) error {
	text, err := json.Marshal(bundle)
	if err != nil {
		return err
	}
	if err := errors.Join(specfile.Write(b.dir, b.record()), os.Mkdir(filepath.Join(b.dir, "disk"), 0o700),
		os.WriteFile(filepath.Join(b.dir, bundleFile), text, 0o600), b.listen()); err != nil {
		return err
	}
	if err := b.socket.WriteSecret(b.spec.Secret, 0o600); err != nil {
		return err
	}
	if err := toolfolder.Link(tools, socket.ToolsDir(b.socketDir())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return r.launch(ctx, b, []string{"wake", "-bundle", b.dir, "-pid-file", filepath.Join(b.dir, pidName),
		"-image-path", image})
}

// Outdated implements sandbox.Freezer.
func (r *Runtime) Outdated(sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok || b.root.Path == "" {
		return nil
	}
	seen, err := b.hostFiles(b.root.Path, withGrafts(r.mounts(b), r.grafts(b))).Seen()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = seen
	return err
}

// Replaced implements sandbox.Freezer.
func (r *Runtime) Replaced(sb sandbox.Sandbox) error {
	b, ok := sb.(*box)
	if !ok {
		return nil
	}
	b.mu.Lock()
	seen := b.seen
	b.mu.Unlock()
	if seen == nil {
		return r.Outdated(sb)
	}
	return seen.Replaced()
}

// PackFrozen implements sandbox.Freezer.
func (r *Runtime) PackFrozen(ctx context.Context, name string) error { return r.frozen.Pack(ctx, name) }

// CopyFrozen implements sandbox.Freezer. The copy has the same files by other names.
func (r *Runtime) CopyFrozen(_ context.Context, image string) (sandbox.FrozenImage, error) {
	return r.frozen.Copy(image)
}

// FrozenImages implements sandbox.Freezer.
func (r *Runtime) FrozenImages(context.Context) ([]sandbox.FrozenImage, error) {
	return r.frozen.List()
}

// RemoveFrozen implements sandbox.Freezer. Programs that no image needs any more go too.
func (r *Runtime) RemoveFrozen(_ context.Context, name string) error {
	return r.frozen.Remove(name, r.neededPrograms)
}

// imagesInUse returns the root file systems that sandboxes need, running ones and frozen ones.
func (r *Runtime) imagesInUse() (map[string]bool, error) {
	used, err := r.frozen.Roots()
	if err != nil {
		return nil, err
	}
	boxes, err := os.ReadDir(r.sandboxesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range boxes { // those too that this server has not taken over yet
		rec, err := r.readRecord(e.Name())
		if atomicfile.IsPassing(err) { // it may need any of them
			return nil, err
		}
		if err == nil {
			used[rec.Image] = true
		}
	}
	return used, nil
}

// neededPrograms returns the SHA-256 of the latest programs, and of those that sandboxes need.
func (r *Runtime) neededPrograms() (needed map[string]bool, err error) {
	needed = map[string]bool{}
	agent, _ := r.agent.File(runtime.GOARCH) // without it there are no sandboxes to put to sleep
	for _, path := range []string{r.Runsc, agent} {
		needed[r.frozen.Programs.Known(path)] = true
	}
	boxes, err := os.ReadDir(r.sandboxesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range boxes { // those too that this server has not taken over yet
		rec, err := r.readRecord(e.Name())
		if atomicfile.IsPassing(err) { // it may need any of them
			return nil, err
		}
		if err == nil {
			needed[filepath.Base(filepath.Dir(rec.Kept.Runsc))] = true
			needed[filepath.Base(filepath.Dir(rec.Kept.Agent))] = true
		}
	}
	return needed, nil
}
