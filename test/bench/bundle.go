package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// bundle is an OCI bundle with which gVisor runs Python without Sandlot, in a sandbox like Sandlot's.
type bundle struct {
	*bench
	dir    string
	flags  []string // of runsc, as the session's sandbox has them
	python string
	config specs.Spec
	files  map[string][]byte // files of the session's sandbox alone, by their mount points
}

// newBundle copies the bundle and the flags of a session's sandbox.
func (s *server) newBundle(c client) (*bundle, error) {
	session, err := open(s.ctx, c)
	if err != nil {
		return nil, err
	}
	b := &bundle{bench: s.bench}
	if b.python, err = interpreter(s, c, session); err != nil {
		return nil, err
	}
	if err := b.copy(s.boxes()); err != nil {
		return nil, err
	}
	if err := discard(s.ctx, c, session); err != nil {
		return nil, err
	}
	if b.dir, err = tempDir(); err != nil {
		return nil, err
	}
	if err := b.adapt(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	return b, nil
}

// copy reads the bundle of the only running sandbox, and runsc's flags from its command line.
func (b *bundle) copy(boxes []string) error {
	if len(boxes) != 1 {
		return fmt.Errorf("%d sandboxes for one session without a pool", len(boxes))
	}
	text, err := os.ReadFile(filepath.Join(boxes[0], "config.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &b.config); err != nil {
		return err
	}
	b.files = map[string][]byte{}
	for _, m := range b.config.Mounts {
		if filepath.Dir(m.Source) == boxes[0] {
			if content, err := os.ReadFile(m.Source); err == nil { // else it is a folder
				b.files[m.Destination] = content
			}
		}
	}
	for _, line := range commandLines() {
		args := strings.Split(line, "\x00")
		if args[0] != "runsc-sandbox" || !slices.Contains(args, filepath.Base(boxes[0])) {
			continue
		}
		for _, a := range args[1:] {
			if !strings.HasPrefix(a, "--") {
				return nil
			}
			b.flags = append(b.flags, a)
		}
	}
	return errors.New("the sandbox's process was not found")
}

// adapt replaces the agent by Python, and the session's folders by new ones.
func (b *bundle) adapt() error {
	p := b.config.Process
	p.Args = []string{b.python, "-c", "print(1)"}
	p.Env = slices.DeleteFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "SANDLOT_") })
	for _, at := range []string{"/workspace", "/run/sandlot"} {
		own := filepath.Join(b.dir, filepath.Base(at))
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		b.mount(at, own)
	}
	for at, content := range b.files {
		own := filepath.Join(b.dir, filepath.Base(at))
		if err := os.WriteFile(own, content, 0o444); err != nil {
			return err
		}
		b.mount(at, own)
	}
	return nil
}

// mount mounts another folder of the host at one of the bundle's mount points.
func (b *bundle) mount(at, folder string) {
	for i, m := range b.config.Mounts {
		if m.Destination == at {
			b.config.Mounts[i].Source = folder
		}
	}
}

// command returns a runsc command with the environment in which the server starts it.
func (b *bundle) command(id string, args ...string) *exec.Cmd {
	disk := filepath.Join(b.dir, id, "disk")
	all := []string{"--root=" + filepath.Join(b.dir, "runsc")}
	for _, f := range b.flags {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "--root":
		case "--overlay2": // root:dir=FOLDER,size=N
			_, size, _ := strings.Cut(value, ",")
			all = append(all, "--overlay2=root:dir="+disk+","+size)
		default:
			all = append(all, f)
		}
	}
	cmd := exec.Command(filepath.Join(b.bin, "sandlot-runsc"), append(all, args...)...)
	dir := filepath.Join(b.dir, id)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + dir, "XDG_RUNTIME_DIR=" + dir}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// write writes the folder of one container.
func (b *bundle) write(id string) error {
	if err := os.MkdirAll(filepath.Join(b.dir, id, "disk"), 0o700); err != nil {
		return err
	}
	if b.config.Linux.CgroupsPath != "" {
		b.config.Linux.CgroupsPath = "/" + b.cgroup() + "/" + id
	}
	text, err := json.Marshal(b.config)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, id, "config.json"), text, 0o600)
}

func (b *bundle) cgroup() string { return filepath.Base(b.dir) }

// run boots one container, and adds the time until it has printed, and the time until it has ended.
func (b *bundle) run(id string, printed, ended *samples) error {
	if err := b.write(id); err != nil {
		return err
	}
	cmd := b.command(id, "run", "-bundle", filepath.Join(b.dir, id), id)
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(out)
	line, _ := r.ReadString('\n')
	first := time.Since(began)
	rest, _ := io.ReadAll(r)
	if err := cmd.Wait(); err != nil {
		return errors.Join(fmt.Errorf("runsc run: %w: %s", err, says.String()), b.command(id, "delete", "-force", id).
			Run())
	}
	if line != "1\n" || len(rest) > 0 {
		return fmt.Errorf("raw gVisor: a wrong answer: %q", line+string(rest))
	}
	*printed, *ended = append(*printed, first), append(*ended, time.Since(began))
	return os.RemoveAll(filepath.Join(b.dir, id))
}

// close removes runsc's state, and the folders.
func (b *bundle) close() error {
	netns := filepath.Join(b.dir, "runsc", "null-netns")
	for unix.Unmount(netns, unix.MNT_DETACH) == nil {
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + b.cgroup())
	for _, g := range append(groups, "/sys/fs/cgroup/"+b.cgroup()) {
		unix.Rmdir(g)
	}
	left := mounts(b.dir)
	for pid, line := range commandLines() {
		if strings.Contains(line, b.dir) {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("this is left of raw gVisor: %q", left)
	}
	return os.RemoveAll(b.dir)
}
