package microsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
)

// Versions of msb that this package knows: its flags changed with patch releases before.
const (
	oldest = "0.7.11"
	before = "0.8.0"
)

// unusable is an error of a machine on which msb makes no sandboxes: with what to do.
type unusable struct {
	brief  string // for users: it names no file
	detail string // for the operator; it may be empty
	advice string
}

func (e *unusable) Error() string {
	text := sandbox.ErrUnavailable.Error() + ": " + e.brief
	if e.detail != "" {
		text += " (" + e.detail + ")"
	}
	return text + "; " + e.advice
}

func (e *unusable) Unwrap() error { return sandbox.ErrUnavailable }

// Advice implements sandbox.Adviser.
func (e *unusable) Advice() string { return e.brief + "; " + e.advice }

const (
	install = "install microsandbox, " + oldest + " or newer and older than " + before + " (pip install " +
		"'microsandbox>=" + oldest + ",<" + before + "'), and set microsandbox.msb to the path of its program msb, or " +
		instead
	instead = "use another runtime (runtime: gvisor; without MSB_SERVER_URL it is the default one on Linux)"
	useKVM  = "enable virtualization in the firmware, or nested virtualization where this machine is itself a virtual " +
		"one, and give the server's user /dev/kvm; or " + instead
)

// find returns the path of a msb of a version that this package knows.
func (r *Runtime) find(ctx context.Context) (string, error) {
	r.mu.Lock()
	known := r.msb
	r.mu.Unlock()
	if known != "" {
		return known, nil
	}
	path, err := r.search()
	if err != nil {
		return "", err
	}
	out, err := r.command(ctx, path, "--version")
	if err != nil {
		return "", &unusable{"microsandbox's program msb does not say its version", err.Error(), install}
	}
	if err := checkVersion(path, string(out)); err != nil {
		return "", err
	}
	r.mu.Lock()
	r.msb = path
	r.mu.Unlock()
	return path, nil
}

// search returns where msb is: by the setting, in the folders of PATH, or where its installer puts it.
func (r *Runtime) search() (string, error) {
	if r.Program != "" {
		if !isProgram(r.Program) {
			return "", &unusable{"microsandbox's program msb is not where the setting microsandbox.msb says", r.Program, install}
		}
		return r.Program, nil
	}
	if path, err := exec.LookPath("msb"); err == nil && filepath.IsAbs(path) {
		return path, nil
	}
	if home, err := os.UserHomeDir(); err == nil {
		if path := filepath.Join(home, ".microsandbox", "bin", "msb"); isProgram(path) {
			return path, nil
		}
	}
	return "", &unusable{"microsandbox's program msb is missing", "neither in PATH nor in ~/.microsandbox/bin", install}
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

var versionText = regexp.MustCompile(`^msb v?(\d+)\.(\d+)\.(\d+)\s*$`)

// checkVersion returns an error unless a version is in the range.
func checkVersion(path, said string) error {
	m := versionText.FindStringSubmatch(said)
	if m == nil {
		return &unusable{"the program msb is not microsandbox's, or an old one",
			fmt.Sprintf("%s says %q of its version", path, fault.Printable(said, 80)), install}
	}
	if v := number(m[1:]); v < number(strings.Split(oldest, ".")) || v >= number(strings.Split(before, ".")) {
		return &unusable{fmt.Sprintf("msb is version %s.%s.%s, which Sandlot does not know", m[1], m[2], m[3]), path, install}
	}
	return nil
}

// number returns a version as one number.
func number(parts []string) (n int) {
	for _, p := range parts {
		k, _ := strconv.Atoi(p)
		n = n*10000 + min(k, 9999)
	}
	return n
}

// passed are variables of the server that msb gets: of its own proxies and certificates, and its folders. What else the
// server's environment has, such as keys, is not for the process that has a machine.
var passed = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "XDG_RUNTIME_DIR", "HTTP_PROXY",
	"HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "DOCKER_CONFIG",
	"MSB_LIBKRUNFW_PATH"}

// maxOutput bounds what is read of an output of msb, in bytes.
const maxOutput = 8 << 20

// complaint is a failure of msb.
type complaint struct {
	command string
	said    string // what it wrote to its standard error
	err     error
}

func (e *complaint) Error() string {
	return fmt.Sprintf("msb %s: %v: %s", e.command, e.err, fault.Printable(strings.TrimSpace(e.said), 2000))
}

func (e *complaint) Unwrap() error { return e.err }

// command runs msb, and returns its standard output. What msb starts has a session of its own, and survives the server.
func (r *Runtime) command(ctx context.Context, path string, args ...string) ([]byte, error) {
	if err := os.MkdirAll(r.home(), 0o700); err != nil {
		return nil, explainErrno(err)
	}
	out, err := temporary(r.dir())
	if err != nil {
		return nil, explainErrno(err)
	}
	defer out.Close()
	said, err := temporary(r.dir())
	if err != nil {
		return nil, explainErrno(err)
	}
	defer said.Close()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir(), out, said
	cmd.Env = []string{"MSB_HOME=" + r.home(), "NO_COLOR=1"}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.WaitDelay = time.Second
	if err := run(cmd); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, &complaint{args[0], string(readStart(said)), err}
	}
	return readStart(out), nil
}

// temporary returns a file without a name. A machine that inherits one does not keep the command's output open, as it
// would a pipe.
func temporary(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "output-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

func readStart(f *os.File) []byte {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, maxOutput))
	return text
}

// ask runs a command of msb whose output is JSON.
func (r *Runtime) ask(ctx context.Context, into any, args ...string) error {
	path, err := r.find(ctx)
	if err != nil {
		return err
	}
	out, err := r.command(ctx, path, append(args, "--format", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(bytes.TrimSpace(out), into); err != nil {
		return fmt.Errorf("msb %s: its answer is not the JSON that is known of it: %w", args[0], err)
	}
	return nil
}

// run runs a command of msb.
func (r *Runtime) run(ctx context.Context, args ...string) error {
	path, err := r.find(ctx)
	if err != nil {
		return err
	}
	_, err = r.command(ctx, path, args...)
	return err
}

// isMissing reports whether msb says that something is not found: a machine or an image, or perhaps another thing.
func isMissing(err error) bool {
	c, ok := errors.AsType[*complaint](err)
	return ok && strings.Contains(c.said, "not found")
}

// causes are what msb and its machines complain of, and what to do.
var causes = []struct{ text, cause, advice string }{
	{"CPU virtualization is not available", "this machine's processor offers no virtual machines", useKVM},
	{"KVM_EXIT_INTERNAL_ERROR", "this machine's /dev/kvm is there, and runs no virtual machine", useKVM},
	{"KVM", "virtual machines do not work here", useKVM},
	{"kvm", "virtual machines do not work here", useKVM},
	{"Hypervisor", "this Mac's hypervisor runs no virtual machine", "run `msb doctor`, or " + instead},
	{"libkrunfw", "a part of microsandbox, libkrunfw, is missing", install},
	{"unexpected argument", "this msb lacks a flag that Sandlot needs", install},
}

// explain returns an error in Sandlot's words. The error itself is the cause.
func explain(err error) error {
	c, ok := errors.AsType[*complaint](err)
	if !ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return explainErrno(err)
	}
	for _, text := range []string{"No space left on device", "os error 28", "Disk quota exceeded"} {
		if strings.Contains(c.said, text) {
			return sandbox.Explain("the disk of the server's machine is full", err)
		}
	}
	for _, text := range []string{"Too many open files", "Resource temporarily unavailable", "Cannot allocate memory"} {
		if strings.Contains(c.said, text) {
			return fmt.Errorf("%w: %w: %w", sandbox.ErrLater, sandbox.ErrNoProcess, err)
		}
	}
	for _, known := range causes {
		if strings.Contains(c.said, known.text) {
			return errors.Join(&unusable{known.cause, "", known.advice}, err)
		}
	}
	return err
}

// explainErrno gives users words for a full disk.
func explainErrno(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return sandbox.Explain("the disk of the server's machine is full", err)
	}
	return err
}

// machines are what msb says of machines, by their names: "Running", "Stopped", "Crashed" and others.
type machines map[string]string

// usage is what msb measures of a machine.
type usage struct {
	Name   string `json:"name"`
	Memory int64  `json:"memory_host_resident_bytes"`
	CPU    int64  `json:"vcpu_time_ns"`
}

const running = "Running"

// hasEnded reports whether a machine with such a status has ended; msb does not know one that was removed. One that
// somebody has paused, or that is about to end, has not.
func hasEnded(status string) bool { return status == "" || status == "Stopped" || status == "Crashed" }

// list asks msb for machines.
func (r *Runtime) list(ctx context.Context, filter ...string) (machines, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var list []struct{ Name, Status string }
	if err := r.ask(ctx, &list, append([]string{"list"}, filter...)...); err != nil {
		return nil, explain(err)
	}
	m := machines{}
	for _, x := range list {
		m[x.Name] = x.Status
	}
	return m, nil
}

// listOwn asks msb for the machines of this instance.
func (r *Runtime) listOwn(ctx context.Context) (machines, error) {
	instance, err := r.instanceID()
	if err != nil {
		return nil, err
	}
	return r.list(ctx, "--label", labelInstance+"="+instance)
}

// look is listOwn, once for all who ask meanwhile. The list may have begun before the caller asked, so that a machine
// that is new may be missing.
func (r *Runtime) look(ctx context.Context) (machines, error) {
	answer := r.once.DoChan("look", func() (any, error) { return r.listOwn(r.ctx) })
	select {
	case a := <-answer:
		return a.Val.(machines), a.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("asking msb for its machines: %w", ctx.Err())
	}
}

// status returns what msb says of a machine. That one does not run is only believed of a list that begins now.
func (r *Runtime) status(ctx context.Context, name string) (string, error) {
	m, err := r.look(ctx)
	if err == nil && m[name] != running {
		m, err = r.listOwn(ctx)
	}
	return m[name], err
}

// measured is what msb has measured of the machines, by their names, at a time.
type measured struct {
	usage map[string]usage
	at    time.Time
}

// measure returns what the machines use, of the last second.
func (r *Runtime) measure(ctx context.Context) (map[string]usage, error) {
	r.mu.Lock()
	seen := r.seen
	r.mu.Unlock()
	if time.Since(seen.at) < time.Second {
		return seen.usage, nil
	}
	var list []usage
	if err := r.ask(ctx, &list, "metrics"); err != nil {
		return nil, explain(err)
	}
	seen = measured{map[string]usage{}, time.Now()}
	for _, u := range list {
		seen.usage[u.Name] = u
	}
	r.mu.Lock()
	r.seen = seen
	r.mu.Unlock()
	return seen.usage, nil
}

// lookTimeout is how long msb may take to list its machines.
const lookTimeout = 20 * time.Second

// sweepLocks removes the files that msb leaves of machines that are gone, three of each. There are no machines.
func (r *Runtime) sweepLocks() {
	for _, name := range []string{"locks", "creation-locks"} {
		err := os.RemoveAll(filepath.Join(r.home(), "run", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Log.Debug("files that msb left could not be removed", "error", err)
		}
	}
}
