// Package stack makes the ready packages: libraries of Python and Node that every sandbox of the template host has,
// read-only, behind what its user installs. They are installed once on the machine, by the machine's own package
// managers, into a folder that is named by what is in it.
package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
	"sandlot/internal/processgroup"
)

// installTimeout bounds one installation, and spare is the room that must be left on the disk for it.
const (
	installTimeout = 30 * time.Minute
	spare          = 4 << 30
)

// Stack is the ready packages of a server.
type Stack struct {
	kinds []*kind
}

// kind is the packages of one package manager.
type kind struct {
	name     string // python, node, go or apt
	packages []string
	dir      string // where the folders of its packages are
	log      *slog.Logger
	ready    atomic.Pointer[string] // the folder that is complete; nil: there is none yet

	sources []pkgregistry.AptSource // of apt
}

// Lists are the packages of each kind. Those of Go are packages of its standard library, of which the build cache is made.
type Lists struct {
	Python, Node, Go []string
	Apt              []pkgregistry.AptSource // the archive whose lists are fetched
}

// New returns the ready packages of a state folder. Without packages of a kind there are none.
func New(stateDir string, lists Lists, log *slog.Logger) *Stack {
	s := &Stack{}
	for name, packages := range map[string][]string{"python": lists.Python, "node": lists.Node, "go": lists.Go} {
		if len(packages) > 0 {
			s.kinds = append(s.kinds, &kind{name: name, packages: packages, log: log,
				dir: filepath.Join(stateDir, "packages", name)})
		}
	}
	if len(lists.Apt) > 0 {
		s.kinds = append(s.kinds, &kind{name: "apt", sources: lists.Apt, log: log, dir: filepath.Join(stateDir, "packages", "apt")})
	}
	// First what is there within seconds, and without which a command is refused.
	order := []string{"apt", "python", "node", "go"}
	slices.SortFunc(s.kinds, func(a, b *kind) int { return slices.Index(order, a.name) - slices.Index(order, b.name) })
	return s
}

// Version identifies what is complete: it changes when packages become ready.
func (s *Stack) Version() string {
	var b strings.Builder
	for _, k := range s.kinds {
		if dir := k.ready.Load(); dir != nil {
			fmt.Fprintln(&b, *dir)
		}
	}
	return b.String()
}

// Describe says in one line what is ready; empty: nothing.
func (s *Stack) Describe() string {
	var parts []string
	for _, k := range s.kinds {
		if k.ready.Load() != nil && (k.name == "python" || k.name == "node") { // what Go has there anyway, and quicker
			parts = append(parts, fmt.Sprintf("%s has %s", map[string]string{"python": "Python", "node": "Node"}[k.name],
				strings.Join(names(k.packages), ", ")))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Ready: " + strings.Join(parts, "; ") + "."
}

// names returns the names of packages, without their versions.
func names(packages []string) (all []string) {
	for _, p := range packages {
		if i := strings.IndexAny(p[1:], "=<>~!@[^"); i >= 0 {
			p = p[:i+1]
		}
		all = append(all, p)
	}
	return all
}

// Add adds the packages that are complete to the template host, and notes there which packages, and lists of an
// archive, are to come.
func (s *Stack) Add(t *image.Template) {
	if t.Name != "host" {
		return
	}
	for _, k := range s.kinds {
		dir := k.ready.Load()
		if dir == nil {
			t.ArchiveComes = t.ArchiveComes || k.name == "apt"
			if k.name == "python" || k.name == "node" {
				t.PackagesCome = append(t.PackagesCome, names(k.packages)...)
			}
			continue
		}
		if k.name == "apt" {
			addApt(t, *dir)
			continue
		}
		at := path.Join(wire.ReadyDir, k.name)
		t.Binds = append(t.Binds, image.Bind{Source: *dir, Target: at})
		if k.name == "go" {
			t.Env["GOCACHEPROG"] = wire.AgentPath + " " + wire.GoCacheCommand + " " + at
			continue
		}
		bin := path.Join(at, "bin")
		if k.name == "node" {
			bin = path.Join(at, "node_modules/.bin")
			t.Env["NODE_PATH"] = strings.TrimPrefix(t.Env["NODE_PATH"]+":"+path.Join(at, "node_modules"), ":")
		}
		t.Env["PATH"] = addBefore(t.Env["PATH"], bin)
	}
}

// addBefore adds a folder to a search path, behind all but the agent's own.
func addBefore(search, dir string) string {
	folders := strings.Split(search, ":")
	if n := slices.Index(folders, image.AgentPrograms); n >= 0 {
		return strings.Join(slices.Insert(folders, n, dir), ":")
	}
	return strings.Join(append(folders, dir), ":")
}

// Open finds the packages that an earlier server has made for the interpreters of the template host.
func (s *Stack) Open(host *image.Template) {
	for _, k := range s.kinds {
		if p := k.interpreter(host); p != "" {
			if dir := k.folder(p); k.isComplete(dir) {
				k.ready.Store(&dir)
			}
		}
	}
}

// Make makes the packages that are missing or too old, one kind after the other, for the interpreters of the template
// host. What fails is logged, and tried again by the next call.
func (s *Stack) Make(ctx context.Context, host *image.Template) {
	for _, k := range s.kinds {
		if ctx.Err() != nil { // the server stops
			return
		}
		p := k.interpreter(host)
		if p == "" || k.ready.Load() != nil && !k.isStale(*k.ready.Load()) {
			continue
		}
		if err := k.make(ctx, p); err != nil && ctx.Err() == nil {
			k.log.Warn("the ready packages were not made; sandboxes go on without them, and the server tries again later "+
				"(packages."+k.name+")", "error", err)
		}
	}
}

// interpreter returns the program on the machine that sandboxes of the template host run for a language: they see it by
// the same path; empty: they have none.
func (k *kind) interpreter(host *image.Template) string {
	switch k.name {
	case "go":
		return goProgram(host)
	case "apt":
		return "apt-get"
	}
	l, ok := host.Language(map[string]string{"python": "python", "node": "javascript"}[k.name])
	if !ok || len(l.Command) == 0 {
		return ""
	}
	real, err := filepath.EvalSymlinks(l.Command[0])
	if err != nil {
		return ""
	}
	return real
}

// folder is where the packages for an interpreter are when they are complete. Its path has its version, with the usual
// package managers, so nothing is run to find out.
func (k *kind) folder(interpreter string) string {
	identity := append([]string{interpreter, runtime.GOARCH}, k.packages...)
	switch k.name {
	case "go":
		identity = append(identity, goVersion(interpreter))
	case "apt":
		identity = append(identity, sourcesText(k.sources))
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\n")))
	return filepath.Join(k.dir, hex.EncodeToString(sum[:8]))
}

// complete is the file that is written into a folder last.
const complete = ".complete"

func (k *kind) isComplete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, complete))
	return err == nil
}

// make installs the packages into a folder of their own.
func (k *kind) make(ctx context.Context, interpreter string) error {
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return err
	}
	k.removeUnfinished()
	if room, known := free(k.dir); known && room < spare {
		return fmt.Errorf("the disk of %s has less than %d GB of room", k.dir, spare>>30)
	}
	tmp, err := os.MkdirTemp(k.dir, unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	began := time.Now()
	k.log.Info("making the ready packages", "kind", k.name, "packages", len(k.packages))
	if err := k.install(ctx, interpreter, tmp); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, complete), []byte(strings.Join(k.packages, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	dir := k.folder(interpreter)
	if k.isComplete(dir) {
		err = replace(dir, tmp)
	} else if err = os.Rename(tmp, dir); err != nil && k.isComplete(dir) { // another server was faster
		err = nil
	}
	if err != nil {
		return err
	}
	k.ready.Store(&dir)
	k.log.Info("the ready packages are there: new sandboxes have them", "kind", k.name, "took",
		time.Since(began).Round(time.Second))
	return nil
}

// unfinished begins the names of folders into which a server installs.
const unfinished = ".making-"

// removeUnfinished removes what servers that have ended did not finish.
func (k *kind) removeUnfinished() {
	left, _ := filepath.Glob(filepath.Join(k.dir, unfinished+"*"))
	for _, dir := range left {
		if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > 2*installTimeout {
			os.RemoveAll(dir)
		}
	}
}

// install runs the package manager. Nothing of a package's own code runs: only wheels are taken, which are files to
// unpack, and npm runs no scripts. Python reads nothing of the folder that it is started in, or of variables (-I).
func (k *kind) install(ctx context.Context, interpreter, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	switch k.name {
	case "go":
		return makeGoCache(ctx, interpreter, dir, k.packages)
	case "apt":
		return k.makeApt(ctx, dir)
	}
	env, remove, err := caches(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer remove()
	if k.name == "node" {
		npm := filepath.Join(filepath.Dir(interpreter), "npm")
		if _, err := os.Stat(npm); err != nil {
			npm = "npm"
		}
		return run(ctx, env, append([]string{npm, "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund",
			"--no-package-lock", "--loglevel", "error"}, k.packages...)...)
	}
	if uv, err := exec.LookPath("uv"); err == nil {
		return run(ctx, env, append([]string{uv, "pip", "install", "--python", interpreter, "--target", dir, "--compile-bytecode",
			"--only-binary", ":all:", "--quiet"}, k.packages...)...)
	}
	return run(ctx, env, append([]string{interpreter, "-I", "-m", "pip", "install", "--target", dir, "--only-binary", ":all:",
		"--disable-pip-version-check", "--no-warn-script-location", "--no-input", "--quiet"}, k.packages...)...)
}

// caches returns variables that give the package managers folders for what they download, until remove is called. They
// need some, and the server's user may have no home that can be written, as services often have none. Nil: they use
// their own.
func caches(below string) (env []string, remove func(), err error) {
	if home, err := os.UserHomeDir(); err == nil {
		if probe, err := os.MkdirTemp(home, ".sandlot-"); err == nil {
			_ = os.Remove(probe)
			return nil, func() {}, nil
		}
	}
	dir, err := os.MkdirTemp(below, unfinished)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"npm_config_cache", "UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME"} {
		if os.Getenv(name) == "" {
			env = append(env, name+"="+filepath.Join(dir, name))
		}
	}
	return env, func() { os.RemoveAll(dir) }, nil
}

// run runs a command with more variables, and returns an error with the end of its output.
func run(ctx context.Context, env []string, args ...string) error {
	if nice, err := exec.LookPath("nice"); err == nil { // the server goes on meanwhile
		args = append([]string{nice, "-n", "10"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), "PIP_NO_COLOR=1", "NO_COLOR=1", "PIP_ROOT_USER_ACTION=ignore"), env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	group, err := processgroup.Start(cmd)
	if err != nil {
		return err
	}
	defer group.Close()
	defer context.AfterFunc(ctx, func() { _ = group.Kill() })()
	if err := cmd.Wait(); err != nil {
		out := bytes.TrimSpace(output.Bytes())
		return fmt.Errorf("%s: %w: %s", strings.Join(args[:min(len(args), 8)], " "), err, out[max(0, len(out)-2000):])
	}
	return nil
}
