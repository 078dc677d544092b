package program

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"sandlot/internal/atomicfile"
)

// Agent is the agent's program: a file that the settings name, or the one in this program for the processor in
// question, which is written to a folder before it is used.
type Agent struct {
	// Path is the file that the settings name. Empty: the one in this program, or else Beside.
	Path string
	// Beside is where a file may be that is used if this program has none, or the same. Empty: there is none.
	Beside string
	// Dir is the folder into which agents are written. It need not exist.
	Dir string
	// InUse returns the names of files in Dir that sandboxes have. When it fails, none is removed.
	InUse func() ([]string, error)

	mu    sync.Mutex
	found map[string]string // paths by Go's name of the processor
}

// Check returns an error that says what to do, if there is no agent for a processor, by any of its names. It writes
// nothing.
func (a *Agent) Check(machine string) error {
	if a.Path != "" {
		return Check(a.Path, machine)
	}
	if _, err := embedded(goName(machine)); err == nil {
		return nil
	}
	return a.checkBeside(machine)
}

func (a *Agent) checkBeside(machine string) error {
	if a.Beside == "" {
		return fmt.Errorf("this program has no agent for the processor %s; set `agent` to the path of one", machine)
	}
	return Check(a.Beside, machine)
}

// File returns the path of the agent for a processor, by any of its names, and writes the file if it is not there, or
// is broken. Files that are left of other versions are removed, except those in use.
func (a *Agent) File(machine string) (string, error) {
	if a.Path != "" {
		return a.Path, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	arch := goName(machine)
	if path, found := a.found[arch]; found {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := a.provide(arch)
	if errors.Is(err, fs.ErrNotExist) {
		path, err = a.Beside, a.checkBeside(machine)
	}
	if err != nil {
		return "", err
	}
	if a.found == nil {
		a.found = map[string]string{}
		a.removeOld()
	}
	a.found[arch] = path
	return path, nil
}

// provide returns a file with the agent in this program. The error is fs.ErrNotExist if there is none.
func (a *Agent) provide(arch string) (string, error) {
	sum, err := embedded(arch)
	if err != nil {
		return "", err
	}
	if arch == runtime.GOARCH && a.Beside != "" && hasSum(a.Beside, sum) && Check(a.Beside, arch) == nil {
		return a.Beside, nil
	}
	path := filepath.Join(a.Dir, fileName(arch, sum))
	if hasSum(path, sum) {
		return path, nil
	}
	content, err := unpack(arch, sum)
	if err == nil {
		err = os.MkdirAll(a.Dir, 0o700)
	}
	if err == nil {
		err = write(path, content)
	}
	if err != nil {
		return "", fmt.Errorf("the agent for %s: %w", arch, err)
	}
	return path, nil
}

// Kept returns the name by which InUse tells a file that File has returned; empty: it is not in the folder.
func (a *Agent) Kept(path string) string {
	if filepath.Dir(path) != a.Dir {
		return ""
	}
	return filepath.Base(path)
}

// Named is the opposite of Kept.
func (a *Agent) Named(name string) (path string) {
	if name == "" {
		return ""
	}
	return filepath.Join(a.Dir, name)
}

// removeOld removes what is left of other versions. An error leaves files that cost nothing but their space, and the
// next start tries again.
func (a *Agent) removeOld() {
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		return
	}
	var keep []string
	for _, arch := range architectures {
		if sum, err := embedded(arch); err == nil {
			keep = append(keep, fileName(arch, sum))
		}
	}
	old := slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(keep, e.Name()) })
	if len(old) == 0 {
		return
	}
	used, err := a.InUse()
	if err != nil {
		return
	}
	for _, e := range old {
		if !strings.HasPrefix(e.Name(), namePrefix) || slices.Contains(used, e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > minAge {
			_ = os.Remove(filepath.Join(a.Dir, e.Name()))
		}
	}
}

// minAge is how old a file is before it is removed: another process may be writing it, or about to use it.
const minAge = time.Hour

// write writes a program that others may execute. Who sees the file sees all of it.
func write(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), namePrefix+"new-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

const namePrefix = "sandlot-agent-"

// fileName returns the name of the file with an agent.
func fileName(arch, sum string) string { return namePrefix + arch + "-" + sum[:16] }

// goName returns Go's name of a processor. If the name is not known, it is Go's already; empty means this machine's.
func goName(machine string) string {
	if machine == "" {
		return runtime.GOARCH
	}
	if m, known := machines[machine]; known {
		return architectures[m]
	}
	return machine
}

// embedded returns the SHA-256 of the agent for a processor that is in this program, in hexadecimal. The error is
// fs.ErrNotExist if there is none.
func embedded(arch string) (string, error) {
	text, err := agents.ReadFile("agents/SHA256SUMS")
	if err != nil {
		return "", err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if sum, name, _ := strings.Cut(lines.Text(), "  "); name == "linux-"+arch && len(sum) == 2*sha256.Size {
			return sum, nil
		}
	}
	return "", fs.ErrNotExist
}

// maxProgram bounds an unpacked agent, in bytes.
const maxProgram = 256 << 20

// unpack returns the agent for a processor.
func unpack(arch, sum string) ([]byte, error) {
	packed, err := agents.ReadFile("agents/linux-" + arch + ".zst")
	if err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxProgram))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := r.DecodeAll(packed, nil)
	if err != nil {
		return nil, err
	}
	if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
		return nil, errors.New("it is not the one that this program was built with; run `make build`")
	}
	return content, nil
}

// hasSum reports whether a file has a content, by its SHA-256.
func hasSum(path, sum string) bool {
	content, err := atomicfile.Read(path, maxProgram)
	if err != nil {
		return false
	}
	got := sha256.Sum256(content)
	return hex.EncodeToString(got[:]) == sum
}
