//go:build linux && !mac

package qemu

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/proc"
)

// system is what a machine boots: a kernel, and its first file system.
type system struct {
	kernel    string
	initramfs string // a file
	agent     string // of which it was made
	machine   string // the type of machine, with its version: machines that sleep wake in no other
}

// kernel is a Linux kernel, with its modules.
type kernel struct{ file, modules string }

// findKernel returns the kernel of the settings, or one of this machine: the running one, or else the newest.
func (r *Runtime) findKernel() (k kernel, err error) {
	k.file = r.Kernel
	if k.file == "" {
		found, _ := filepath.Glob("/boot/vmlinuz-*")
		slices.Sort(found)
		if running := "/boot/vmlinuz-" + proc.KernelRelease(); slices.Contains(found, running) {
			found = append(found, running)
		}
		if len(found) == 0 {
			return k, unavailable("there is no kernel for the sandboxes in /boot: install one (Debian: apt-get " +
				"install linux-image-cloud-amd64), or set qemu.kernel to the file of one")
		}
		k.file = found[len(found)-1]
	}
	f, err := os.Open(k.file)
	if err != nil {
		return k, unavailable("the kernel for the sandboxes cannot be read (make it readable for the server's user, or "+
			"set qemu.kernel to a copy): %v", err)
	}
	f.Close()
	_, release, _ := strings.Cut(filepath.Base(k.file), "vmlinuz-")
	k.modules = cmp.Or(r.Modules, filepath.Join("/lib/modules", release))
	if beside := filepath.Join(filepath.Dir(k.file), "../lib/modules", release); r.Modules == "" && release != "" {
		if _, err := os.Stat(beside); err == nil {
			k.modules = beside
		}
	}
	if st, err := os.Stat(k.modules); err != nil || !st.IsDir() {
		return k, unavailable("the modules of the kernel %s are missing: set qemu.modules to their folder", k.file)
	}
	return k, nil
}

// findSystem returns what machines boot. The first file system is made once, and kept by its content.
func (r *Runtime) findSystem(ctx context.Context) (*system, error) {
	agent, err := r.agent.File(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	r.setup.Lock()
	defer r.setup.Unlock()
	if r.system != nil && r.system.agent == agent {
		if _, err := os.Stat(r.system.initramfs); err == nil {
			return r.system, nil
		}
	}
	k, err := r.findKernel()
	if err != nil {
		return nil, err
	}
	s := &system{agent: agent}
	if s.machine, err = r.machineType(ctx); err != nil {
		return nil, err
	}
	content, err := makeInitramfs(agent, k.modules)
	if err != nil {
		return nil, fmt.Errorf("qemu: the first file system of machines: %w", err)
	}
	// A copy: QEMU may be a user who cannot read the machine's own, and an upgrade removes that.
	text, err := os.ReadFile(k.file)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.dir(), "boot")
	if s.kernel, err = keep(dir, text, ".kernel"); err != nil {
		return nil, err
	}
	if s.initramfs, err = keep(dir, content, ".cpio"); err != nil {
		return nil, err
	}
	removeOthers(dir, s.kernel, s.initramfs)
	r.system = s
	return s, nil
}

// keep writes a file for all users to a folder, by its content, and returns its path. Other users do not reach the folder.
func keep(dir string, content []byte, ending string) (string, error) {
	path := filepath.Join(dir, shortHash(content)+ending)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	making := path + ".new"
	if err := atomicfile.WriteThrough(making, content); err != nil {
		return "", err
	}
	return path, errors.Join(os.Chmod(making, 0o644), os.Rename(making, path))
}

// keptTime is how long a first file system stays that is of no use any more: another server may be
// about to boot it.
const keptTime = time.Hour

// removeOthers removes earlier kernels and first file systems. Machines that run have read theirs.
func removeOthers(dir string, keep ...string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		path := filepath.Join(dir, e.Name())
		if err == nil && !slices.Contains(keep, path) && time.Since(info.ModTime()) > keptTime {
			os.Remove(path)
		}
	}
}

var machineLine = regexp.MustCompile(`(?m)^q35\s.*alias of (pc-q35-[0-9.]+)\)`)

// machineType returns the newest type of machine that this QEMU has, with its version.
func (r *Runtime) machineType(ctx context.Context) (string, error) {
	path, err := r.program()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-machine", "help").Output()
	found := machineLine.FindSubmatch(out)
	if err != nil || found == nil {
		return "", unavailable("%s does not say which machines it has (q35): %v", path, err)
	}
	return string(found[1]), nil
}

// wanted are the kernel modules that a machine needs: its bus, disks, ports and random numbers, the file systems, and what
// redirects connections. One that the kernel has inside has no file.
var wanted = []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "crc32c_generic", "erofs", "ext4",
	"overlay", "nf_tables", "nft_chain_nat", "nft_redir", "nft_ct"}

// makeInitramfs returns the first file system of machines, as an archive: the agent, and modules.
func makeInitramfs(agent, modulesDir string) ([]byte, error) {
	program, err := os.ReadFile(agent)
	if err != nil {
		return nil, err
	}
	var archive cpio
	archive.folder("dev")
	archive.device("dev/console", 5, 1)
	archive.folder("modules")
	archive.file(initProgram[1:], 0o755, program)
	modules, err := orderedModules(modulesDir)
	if err != nil {
		return nil, err
	}
	var order strings.Builder
	for _, m := range modules {
		path := "modules/" + m.name + ".ko"
		archive.file(path, 0o644, m.content)
		fmt.Fprintln(&order, "/"+path)
	}
	archive.file(wire.ModulesFile[1:], 0o644, []byte(order.String()))
	return archive.end(), nil
}

// initProgram is the agent in the first file system.
const initProgram = "/sandlot-agent"

// module is a kernel module.
type module struct {
	name    string
	content []byte
}

// orderedModules returns the wanted modules and those they need, each after what it needs.
func orderedModules(dir string) (all []module, err error) {
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _, found := strings.Cut(e.Name(), ".ko"); found && e.Type().IsRegular() {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		path := files[name]
		if path == "" || seen[name] {
			return nil
		}
		seen[name] = true
		content, err := readModule(path)
		if err != nil {
			return err
		}
		needs, err := needsOf(content)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		all = append(all, module{name, content})
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// readModule returns the content of a module's file, which may be compressed.
func readModule(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".zst", ".xz", ".gz":
		program := map[string]string{".zst": "zstd", ".xz": "xz", ".gz": "gzip"}[filepath.Ext(path)]
		cmd := exec.Command(program, "-dc")
		cmd.Stdin = bytes.NewReader(content)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("unpacking %s with %s: %w", path, program, err)
		}
		return out, nil
	}
	return content, nil
}

// needsOf returns the names of the modules that a module needs.
func needsOf(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it says nothing of itself")
	}
	text, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		if list, found := strings.CutPrefix(entry, "depends="); found && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
