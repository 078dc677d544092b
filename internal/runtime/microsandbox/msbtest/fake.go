//go:build linux

package msbtest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
)

// fake is the program.
type fake struct {
	Options
	home string
}

// machine is what the fake keeps of one.
type machine struct {
	Name    string
	Labels  map[string]string
	Image   string
	Created time.Time
	PID     int
	Ticks   uint64 // tells the process from a later one with the same id
	Booting bool   // the process is the fake that makes the machine
}

// status is the word that msb has for it.
func (m machine) status() string {
	if ticks, err := proc.StartTicks(m.PID); err != nil || ticks != m.Ticks || proc.State(m.PID) == 'Z' {
		return "Crashed"
	}
	if m.Booting {
		return "Starting"
	}
	return "Running"
}

// refused is an error of the arguments, with the exit code that the real program has for it.
type refused string

func (r refused) Error() string { return string(r) }

func (f fake) main(args []string) int {
	err := f.run(args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	if _, ok := errors.AsType[refused](err); ok {
		return 2
	}
	return 1
}

func (f fake) run(args []string) error {
	if slices.Equal(args, []string{"--version"}) {
		if f.Version != "" {
			fmt.Println("msb", f.Version)
			return nil
		}
		fmt.Println("msb", Version)
		return nil
	}
	if len(args) == 0 || f.home == "" {
		return refused("no command, or no MSB_HOME")
	}
	command := args[:1]
	if args[0] == "image" && len(args) > 1 {
		command = args[:2]
	}
	given, operands, err := f.parse(command, args[len(command):])
	if err != nil {
		return err
	}
	switch strings.Join(command, " ") {
	case "doctor":
		if f.Doctor != "" {
			return errors.New(f.Doctor)
		}
		return nil
	case "create":
		return f.create(given, operands)
	case "list":
		return f.list(given)
	case "metrics":
		return f.metrics()
	case "remove":
		return f.remove(given, operands)
	case "logs":
		fmt.Println("INFO the fake's machine\n" + f.Log)
		return nil
	case "pull":
		return f.pull(operands)
	case "image inspect":
		return f.inspectImage(operands)
	}
	return refused("the fake does not have the command " + strings.Join(command, " "))
}

// parse checks arguments as the real program does, by its --help.
func (f fake) parse(command, args []string) (given map[string][]string, operands []string, err error) {
	flags, positional, err := helpOf(f.Real, command...)
	if err != nil {
		return nil, nil, refused(fmt.Sprintf("unrecognized subcommand %q: %v", command, err))
	}
	given = map[string][]string{}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !strings.HasPrefix(a, "-") {
			operands = append(operands, a)
			continue
		}
		flag, known := flags[a]
		if !known {
			return nil, nil, refused(fmt.Sprintf("unexpected argument '%s' found", a))
		}
		value := ""
		if flag.value {
			if i++; i >= len(args) || strings.HasPrefix(args[i], "-") {
				return nil, nil, refused(fmt.Sprintf("a value is required for '%s' but none was supplied", a))
			}
			if value = args[i]; len(flag.possible) > 0 && !slices.Contains(flag.possible, value) {
				return nil, nil, refused(fmt.Sprintf("invalid value '%s' for '%s'", value, a))
			}
		}
		given[flag.long] = append(given[flag.long], value)
	}
	if len(operands) > 0 && !positional {
		return nil, nil, refused(fmt.Sprintf("unexpected argument '%s' found", operands[0]))
	}
	return given, operands, nil
}

func (f fake) dir(name string) string  { return filepath.Join(f.home, "fake", name) }
func (f fake) file(name string) string { return filepath.Join(f.dir(name), "machine.json") }

func (f fake) read(name string) (m machine, err error) {
	text, err := os.ReadFile(f.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("sandbox not found: %s", name)
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

func (f fake) write(m machine) error {
	text, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(f.file(m.Name)+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(f.file(m.Name)+".new", f.file(m.Name))
	}
	return err
}

func (f fake) list(given map[string][]string) error {
	all, _ := filepath.Glob(f.file("*"))
	entries := []map[string]string{}
	for _, path := range all {
		m, err := f.read(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue // it is being removed
		}
		if slices.ContainsFunc(given["label"], func(kv string) bool {
			k, v, _ := strings.Cut(kv, "=")
			has, ok := m.Labels[k]
			return !ok || has != v
		}) {
			continue
		}
		entries = append(entries, map[string]string{"name": m.Name, "status": m.status(), "image": m.Image,
			"created_at": m.Created.Format(time.RFC3339Nano)})
	}
	return json.NewEncoder(os.Stdout).Encode(entries)
}

func (f fake) metrics() error {
	all, _ := filepath.Glob(f.file("*"))
	entries := []map[string]any{}
	for _, path := range all {
		m, err := f.read(filepath.Base(filepath.Dir(path)))
		if err != nil || m.status() != "Running" {
			continue
		}
		entries = append(entries, map[string]any{"name": m.Name, "state": "running", "vcpu_time_ns": 1_000_000,
			"memory_host_resident_bytes": 64 << 20})
	}
	return json.NewEncoder(os.Stdout).Encode(entries)
}

func (f fake) remove(given map[string][]string, names []string) error {
	if len(names) != 1 {
		return refused("one name is needed")
	}
	m, err := f.read(names[0])
	if err != nil {
		return err
	}
	if m.status() == "Running" && given["force"] == nil {
		return fmt.Errorf("sandbox is running: %s", m.Name)
	}
	for f.runsc(m.Name, "delete", "-force", m.Name).Run() != nil && m.status() == "Running" {
		time.Sleep(10 * time.Millisecond)
	}
	f.killAll(m.Name) // what gVisor does not know, since its start was cut off
	if err := os.Remove(f.file(m.Name)); err != nil {
		return err
	}
	err = os.RemoveAll(f.dir(m.Name))
	f.unmount()
	return err
}

// killAll kills the processes that have a machine's folder among their arguments, but for this one.
func (f fake) killAll(name string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		line, err := os.ReadFile(p + "/cmdline")
		pid, _ := strconv.Atoi(filepath.Base(p))
		if err == nil && pid != os.Getpid() && strings.Contains(string(line), f.dir(name)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// lock takes the lock of the mount that gVisor has for all sandboxes without a network. Exclusive: nobody waits for it.
func (f fake) lock(how int) (unlock func(), ok bool) {
	l, err := os.OpenFile(filepath.Join(f.home, "fake.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return func() {}, false
	}
	if syscall.Flock(int(l.Fd()), how) != nil {
		l.Close()
		return func() {}, false
	}
	return func() { l.Close() }, true
}

// unmount removes gVisor's mount once there are no machines.
func (f fake) unmount() {
	unlock, ok := f.lock(syscall.LOCK_EX | syscall.LOCK_NB)
	defer unlock()
	if left, _ := filepath.Glob(f.file("*")); !ok || len(left) > 0 {
		return
	}
	for syscall.Unmount(filepath.Join(f.home, "fake-runsc", "null-netns"), syscall.MNT_DETACH) == nil {
	}
}

func (f fake) images() string { return filepath.Join(f.home, "fake-images") }

func imageFile(ref string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(ref))) }

func (f fake) pull(refs []string) error {
	if len(refs) != 1 {
		return refused("one reference is needed")
	}
	if strings.HasPrefix(refs[0], "missing.invalid/") {
		return errors.New("registry error: not authorized, or no such manifest")
	}
	return errors.Join(os.MkdirAll(f.images(), 0o700),
		os.WriteFile(filepath.Join(f.images(), imageFile(refs[0])), []byte("sha256:"+imageFile(refs[0])), 0o600))
}

func (f fake) inspectImage(refs []string) error {
	if len(refs) != 1 {
		return refused("one reference is needed")
	}
	digest, err := os.ReadFile(filepath.Join(f.images(), imageFile(refs[0])))
	if err != nil {
		return fmt.Errorf("image not found: %s", refs[0])
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"reference": refs[0], "digest": string(digest),
		"config": map[string]any{"env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"OF_IMAGE=yes", wire.EnvCapable + "=hostile"}, "working_dir": "", "user": ""}})
}

// create makes a machine of the machine's own programs, whatever the image is, and returns when the agent runs.
func (f fake) create(given map[string][]string, operands []string) (err error) {
	if f.Create != "" {
		return errors.New(f.Create)
	}
	m, err := f.check(given, operands)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir(m.Name), 0o700); err != nil {
		return err
	}
	unlock, _ := f.lock(syscall.LOCK_SH)
	defer unlock()
	if _, err := f.read(m.Name); err == nil {
		return fmt.Errorf("sandbox already exists: %s", m.Name)
	}
	if err := f.write(m); err != nil {
		return err
	}
	if err := f.bundle(m, given); err != nil {
		return err
	}
	megabytes, err := strconv.Atoi(strings.TrimSuffix(only(given["root-disk"], "10240M"), "M"))
	if err != nil {
		return err
	}
	pidFile := filepath.Join(f.dir(m.Name), "pid")
	cmd := f.runsc(m.Name, "run", "-detach", "-pid-file", pidFile, "-bundle", bundleDir(given), m.Name)
	cmd.Args = slices.Insert(cmd.Args, 1, fmt.Sprintf("--overlay2=root:dir=%s,size=%d", f.dir(m.Name), megabytes<<20))
	log, err := os.Create(filepath.Join(f.dir(m.Name), "log")) // not a pipe, which gVisor would keep open
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(log.Name())
		return fmt.Errorf("failed to start %q\n  → runsc: %w: %s", m.Name, err, out)
	}
	text, err := os.ReadFile(pidFile)
	if err == nil {
		m.PID, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err == nil {
		m.Ticks, err = proc.StartTicks(m.PID)
	}
	if err != nil {
		return err
	}
	m.Booting = false
	return f.write(m)
}

func only(values []string, otherwise string) string {
	if len(values) == 0 {
		return otherwise
	}
	return values[len(values)-1]
}

// check demands what the runtime must say of each machine.
func (f fake) check(given map[string][]string, operands []string) (m machine, err error) {
	if len(operands) != 1 || given["name"] == nil || len(given["name"][0]) > 128 {
		return m, refused(fmt.Sprintf("one image and a name are needed, not %q and %q", operands, given["name"]))
	}
	m = machine{Name: given["name"][0], Image: operands[0], Labels: map[string]string{}, Created: time.Now(),
		PID: os.Getpid(), Booting: true}
	if m.Ticks, err = proc.StartTicks(m.PID); err != nil {
		return m, err
	}
	for _, kv := range given["label"] {
		k, v, _ := strings.Cut(kv, "=")
		m.Labels[k] = v
	}
	folder := strings.HasPrefix(m.Image, "/")
	_, cached := os.Stat(filepath.Join(f.images(), imageFile(m.Image)))
	if !folder && cached != nil {
		return m, fmt.Errorf("image error: image not cached: %s", m.Image)
	}
	for name := range given { // no way out but the vsock
		if strings.HasPrefix(name, "net") || name == "port" || name == "secret" || name == "proxy" || name == "env" {
			return m, refused("the fake makes no machine with --" + name)
		}
	}
	if given["no-net"] == nil || len(given["vsock"]) != 1 {
		return m, refused("the fake makes no machine without --no-net and one --vsock")
	}
	path, port, _ := cutLast(given["vsock"][0], ":")
	if st, err := os.Stat(path); err != nil || st.Mode().Type() != fs.ModeSocket || !filepath.IsAbs(path) || port != "5000" {
		return m, fmt.Errorf("initialize stream vsock route %s: %v", given["vsock"][0], err)
	}
	return m, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// runsc returns a command of gVisor.
func (f fake) runsc(name string, args ...string) *exec.Cmd {
	dir := f.dir(name)
	cmd := exec.Command(filepath.Join(f.Bin, "sandlot-runsc"), append([]string{"--root=" + filepath.Join(f.home, "fake-runsc"),
		"--host-uds=open", "--network=none", "--net-raw", "--ignore-cgroups", "--host-settings=ignore",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + dir, "XDG_RUNTIME_DIR=" + dir}
	runtime.LockOSThread() // the signal comes when the thread ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// bundle writes the root file system of a machine and what gVisor has to know of it.
func (f fake) bundle(m machine, given map[string][]string) error {
	host, err := image.Host()
	if err != nil {
		return err
	}
	root := filepath.Join(f.dir(m.Name), "root")
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "nodev", "mode=1777"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
	}
	if strings.HasPrefix(m.Image, "/") {
		root = m.Image
	} else {
		if err := writeRoot(root, host); err != nil {
			return err
		}
		for _, b := range host.Binds {
			mounts = append(mounts, bind(b.Source, b.Target, true))
		}
	}
	more, err := mountsOf(given)
	if err != nil {
		return err
	}
	for _, kv := range given["copy-file"] {
		from, to, _ := strings.Cut(kv, ":")
		text, err := os.ReadFile(from)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(root+to), 0o755), os.WriteFile(root+to, text, 0o644)); err != nil {
			return err
		}
	}
	env := []string{"MSB_OF_THE_FAKE=1"}
	for _, kv := range given["init-env"] {
		env = append(env, strings.Replace(kv, "="+wire.VsockAddress+"5000",
			"="+wire.BridgeAddress+wire.SocketDir+"/"+wire.Socket, 1))
	}
	memory, err := strconv.Atoi(strings.TrimSuffix(only(given["memory"], "1024M"), "M"))
	if err != nil {
		return err
	}
	capabilities := append(slices.Collect(maps.Keys(wire.Capabilities)), "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETPCAP")
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: only(given["hostname"], "x"), Root: &specs.Root{Path: root},
		Process: &specs.Process{Args: append(slices.Clone(given["init"]), given["init-arg"]...), Env: env, Cwd: "/",
			NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{Bounding: capabilities,
				Permitted: capabilities, Effective: capabilities}},
		Mounts: append(mounts, more...),
		// As a machine whose kernel takes what the runtime adds for it.
		Annotations: map[string]string{"dev.sandlot.cpus": only(given["cpus"], "1"),
			"dev.sandlot.memory": strconv.FormatInt(int64(memory-160)<<20, 10)},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace},
			{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}}},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundleDir(given), "config.json"), text, 0o600)
}

// bundleDir returns the folder of gVisor's bundle. Sandlot's gVisor lets a sandbox dial the socket in the folder sock of
// its bundle alone, so the bundle is beside the folder of the vsock's socket.
func bundleDir(given map[string][]string) string {
	path, _, _ := cutLast(given["vsock"][0], ":")
	return filepath.Dir(filepath.Dir(path))
}

// mountsOf returns the folders and files that a machine sees, by the flags for them.
func mountsOf(given map[string][]string) (list []specs.Mount, err error) {
	for _, kind := range []string{"mount-file", "mount-dir"} {
		for _, text := range given[kind] {
			parts := strings.Split(text, ":")
			if len(parts) != 3 {
				return nil, fmt.Errorf("--%s must use SOURCE:DEST[:OPTIONS], got %q", kind, text)
			}
			if st, err := os.Stat(parts[0]); err != nil || st.IsDir() != (kind == "mount-dir") {
				return nil, fmt.Errorf("mount %s: no such file or folder: %v", parts[0], err)
			}
			options := strings.Split(parts[2], ",")
			uid, gid := -1, -1
			for _, o := range options {
				name, value, _ := strings.Cut(o, "=")
				n, numberErr := strconv.Atoi(strings.TrimSuffix(value, "M"))
				switch name {
				case "ro", "rw", "nosuid", "nodev":
					numberErr = nil
				case "quota":
				case "uid":
					uid = n
				case "gid":
					gid = n
				default:
					return nil, fmt.Errorf("unknown mount option %q", o)
				}
				if numberErr != nil {
					return nil, fmt.Errorf("mount option %q: %w", o, numberErr)
				}
			}
			if uid >= 0 && os.Getuid() == 0 { // msb presents the files so; here they are
				if err := os.Chown(parts[0], uid, gid); err != nil {
					return nil, err
				}
			}
			list = append(list, bind(parts[0], parts[1], slices.Contains(options, "ro")))
		}
	}
	return list, nil
}

func bind(source, target string, readOnly bool) specs.Mount {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"rbind", mode, "nosuid", "nodev",
		"dcache=0"}}
}

// writeRoot writes the root file system of the template host into a folder.
func writeRoot(root string, host *image.Template) error {
	var err error
	for _, d := range []string{"", "tmp", "var/tmp", "var/lib", "proc", "sys", "dev", "run", "root", "etc", "workspace", "home"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	err = errors.Join(err, os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky), os.Chmod(filepath.Join(root, "var/tmp"),
		0o777|fs.ModeSticky))
	for name, target := range host.Links {
		err = errors.Join(err, os.Symlink(target, filepath.Join(root, name)))
	}
	files := maps.Clone(host.Files)
	for name, text := range image.BaseFiles() {
		if files[name] == nil {
			files[name] = []byte(text)
		}
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
	}
	return err
}
