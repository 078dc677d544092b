package dockercommand

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"sandlot/internal/atomicfile"
	"sandlot/internal/platform"
)

// Daemon is a client of a Docker daemon. Without settings or a context that name one, the daemon is looked for when it is
// first needed, in the usual places. The first one that answers is kept: another one would have other volumes.
type Daemon struct {
	*client.Client
	search *search // nil: settings name the daemon
}

// DaemonHost returns the daemon's address. While none was found, it is that of the docker command.
func (d *Daemon) DaemonHost() string {
	if d.search != nil {
		if address := d.search.address(); address != "" {
			return address
		}
	}
	return d.Client.DaemonHost()
}

// IsSearched reports whether no settings name the daemon.
func (d *Daemon) IsSearched() bool { return d.search != nil }

// Remember stores the address of a daemon that no settings name, before it gets something to keep.
func (d *Daemon) Remember() error {
	if d.search == nil || d.search.file == "" {
		return nil
	}
	host := d.search.address()
	if last, err := readAddress(d.search.file); err != nil || last == host || host == "" {
		return err
	}
	err := os.MkdirAll(filepath.Dir(d.search.file), 0o700)
	if err == nil {
		err = atomicfile.WriteThrough(d.search.file, []byte(host))
	}
	if err != nil {
		return fmt.Errorf("docker: storing which daemon has the sandboxes: %w", err)
	}
	return nil
}

// maxAddress bounds the stored address of a daemon, in bytes.
const maxAddress = 4096

// readAddress returns the stored address of a daemon; empty: there is none.
func readAddress(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := atomicfile.Read(file, maxAddress)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

// Unanswered returns the error for one that says that the daemon has not answered. It says what to do.
func (d *Daemon) Unanswered(err error) error {
	if none, ok := errors.AsType[*NotFoundError](err); ok {
		return none
	}
	return &unansweredError{d.DaemonHost(), err}
}

// unansweredError is the error of a daemon that the settings name.
type unansweredError struct {
	host string
	error
}

func (e *unansweredError) Error() string {
	return fmt.Sprintf("the Docker daemon at %s does not answer: %v; start it, or set docker.host", e.host, e.error)
}

func (e *unansweredError) Unwrap() error { return e.error }

// Advice returns what to tell users. It does not say where the daemon is.
func (e *unansweredError) Advice() string {
	return "the Docker daemon of this server does not answer: start it (such as Docker Desktop), and try again. " +
		"`sandlot doctor` says more"
}

// Close closes the connections.
func (d *Daemon) Close() error {
	err := d.Client.Close()
	if d.search != nil {
		err = errors.Join(err, d.search.close())
	}
	return err
}

// Attempt is one daemon that was looked for. Problem is why it cannot be used; empty: it answers.
type Attempt struct{ Program, Address, Problem string }

func (a Attempt) String() string {
	if a.Problem == "" {
		return fmt.Sprintf("%s at %s answers", a.Program, a.Address)
	}
	return fmt.Sprintf("%s at %s: %s", a.Program, a.Address, a.Problem)
}

// Look returns what became of each place where a daemon may be and something is, in the order of preference.
func Look(ctx context.Context) (tried []Attempt) {
	for _, p := range places(here()) {
		found, one := look(ctx, []place{p})
		if found != nil {
			found.Close()
		}
		tried = append(tried, one...)
	}
	return tried
}

// here is this machine.
func here() machine {
	return machine{platform.System, os.Getuid(), os.Getenv}
}

// NotFoundError says that no daemon was found. Its text is for people, and names no path.
type NotFoundError struct {
	Tried []Attempt // of what is there, and cannot be used
	last  string    // the address of the daemon that was used before, which does not answer; empty: none was
}

// Error says what to do. It has no texts of other errors: the library would take them for its own.
func (e *NotFoundError) Error() string { return e.advice(platform.System) }

func (e *NotFoundError) advice(system string) string {
	if e.last != "" {
		return "the Docker daemon that has the sandboxes and files of this server does not answer: start it, and try " +
			"again. To use another one from now on, name it as docker.host in the settings; `sandlot doctor` " +
			"lists them"
	}
	if len(e.Tried) > 0 {
		var programs []string
		for _, t := range e.Tried {
			programs = append(programs, t.Program)
		}
		return "Docker is here and does not run, or may not be used (" + strings.Join(programs, ", ") + "): start " +
			"it, and try again. `sandlot doctor` says what was tried"
	}
	switch system {
	case "darwin":
		return "sandboxes are Linux, so a Mac needs a Docker daemon for them, and none was found: install Docker " +
			"Desktop (https://docs.docker.com/desktop), OrbStack (https://orbstack.dev) or Colima (brew install " +
			"colima docker), start it, and try again. Sandlot finds it by itself"
	case "windows":
		return "sandboxes are Linux, so Windows needs Docker Desktop (https://docs.docker.com/desktop) for them, or " +
			"WSL, in which Sandlot needs no Docker: run `wsl --install`, install Sandlot in it, and then `sandlot " +
			"install --wsl CLIENT` here. No Docker daemon was found"
	}
	return "no Docker daemon was found: start it (systemctl start docker), or use the runtime gvisor, which needs none"
}

// Advice returns what to tell users.
func (e *NotFoundError) Advice() string { return e.Error() }

// search finds a daemon.
type search struct {
	places []place
	file   string // for the address of the daemon that is found; empty: nobody keeps anything on it
	last   string // the address of the daemon that was used before; empty: none was

	looking chan struct{} // has one element while somebody looks

	mu     sync.Mutex
	found  *client.Client
	host   string
	failed *NotFoundError // what the last look has found
	at     time.Time      // when that was
}

func newSearch(m machine, file string) (s *search, err error) {
	s = &search{places: places(m), file: file, looking: make(chan struct{}, 1)}
	if s.last, err = readAddress(file); err != nil {
		return nil, fmt.Errorf("docker: which daemon has the sandboxes: %w", err)
	}
	if s.last != "" { // its volumes are there, and no other daemon has them
		s.places = []place{{"the one that was used before", s.last}}
	}
	return s, nil
}

const (
	// answerTimeout is how long a daemon may take to say that it is there.
	answerTimeout = 2 * time.Second
	// pause is how long nobody looks again after nothing was found.
	pause = 500 * time.Millisecond
)

func (s *search) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.host
}

func (s *search) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		return nil
	}
	return s.found.Close()
}

// dial connects to the daemon, which it finds if nobody has yet.
func (s *search) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	daemon, err := s.daemon(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkPlace(daemon.DaemonHost()); err != nil { // somebody else may have come there since
		return nil, err
	}
	return daemon.Dialer()(ctx)
}

func (s *search) daemon(ctx context.Context) (*client.Client, error) {
	if found, err := s.known(); found != nil || err != nil {
		return found, err
	}
	select {
	case s.looking <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.looking }()
	if found, err := s.known(); found != nil || err != nil {
		return found, err
	}
	found, tried := look(ctx, s.places)
	if err := ctx.Err(); err != nil { // a daemon before it in the list may have had no time to answer
		if found != nil {
			found.Close()
		}
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.failed = time.Now(), nil
	if found == nil {
		s.failed = &NotFoundError{tried, s.last}
		return nil, s.failed
	}
	s.found, s.host = found, found.DaemonHost()
	return s.found, nil
}

// known returns the daemon that was found, or the error of a look that was made just now; neither: it is to be looked
// for.
func (s *search) known() (*client.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil && s.failed != nil && time.Since(s.at) < pause {
		return nil, s.failed
	}
	return s.found, nil
}

// look asks one place after the other, and returns a client of the first daemon that answers; nil: none does. Of places
// where nothing is, it says nothing.
func look(ctx context.Context, all []place) (found *client.Client, tried []Attempt) {
	for _, p := range all {
		c, err := ask(ctx, p)
		if errors.Is(err, errNothing) {
			continue
		}
		a := Attempt{Program: p.program, Address: p.address}
		if err != nil {
			a.Problem = err.Error()
		}
		if tried = append(tried, a); c != nil {
			return c, tried
		}
	}
	return nil, tried
}

// errNothing says that there is nothing in a place.
var errNothing = errors.New("nothing is there")

// ask returns a client of a daemon that answers, and that no other user of the machine has.
func ask(ctx context.Context, p place) (*client.Client, error) {
	if err := checkPlace(p.address); err != nil {
		return nil, err
	}
	c, err := client.New(client.WithHost(p.address), client.WithUserAgent("sandlot"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if _, err := c.Ping(ctx, client.PingOptions{}); err != nil {
		c.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("it has not answered within %s", answerTimeout)
		}
		return nil, err
	}
	return c, nil
}
