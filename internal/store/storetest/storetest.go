// Package storetest starts a PostgreSQL server for tests. It owns that server: it has a folder of its own, listens on a
// Unix socket in it and nowhere else, and is gone at the end of the test program.
package storetest

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Password is the password in the URLs of databases. No file, log or answer may have it.
const Password = "hunter2-of-the-database"

// Server is a PostgreSQL server.
type Server struct {
	dir     string
	bin     string
	account *syscall.Credential // nil: that of the test
	cmd     *exec.Cmd
	ended   chan struct{}
	log     *os.File

	mu        sync.Mutex
	databases int
}

var (
	shared     *Server
	sharedOnce sync.Once
)

// Main runs the tests of a package, and then removes the server that Database has started. TestMain calls it.
func Main(m *testing.M) int {
	code := m.Run()
	if shared == nil {
		return code
	}
	if err := shared.remove(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the PostgreSQL server of the tests:", err)
		return max(code, 1)
	}
	return code
}

// Database returns the URL of a new database of the test program's server. The package has a TestMain that calls Main.
func Database(t testing.TB) string {
	t.Helper()
	var err error
	sharedOnce.Do(func() { shared, err = create() })
	if err != nil || shared == nil {
		t.Fatalf("no PostgreSQL server: %v", err)
	}
	return shared.Database(t)
}

// Each runs a test as subtests: on SQLite with the path of an empty folder, and on PostgreSQL with the URL of an empty
// database. Both are places that store.Open opens.
func Each(t *testing.T, test func(t *testing.T, place string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, t.TempDir()) })
	t.Run("postgres", func(t *testing.T) { test(t, Database(t)) })
}

// Start starts a server for one test, which may stop it. Further arguments go to the program postgres.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := create(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Database creates a database, and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.databases++
	name := fmt.Sprintf("test%d", s.databases)
	s.mu.Unlock()
	s.Query(t, "postgres", "CREATE DATABASE "+name+" TEMPLATE template0")
	return s.URL("sandlot", name)
}

// URL returns the URL of a database for a user.
func (s *Server) URL(user, database string) string {
	return fmt.Sprintf("postgres://%s:%s@/%s?host=%s", user, Password, database, url.QueryEscape(s.dir))
}

// Query executes statements in a database with psql, and returns what it prints: a line for each row.
func (s *Server) Query(t testing.TB, database, statements string) string {
	t.Helper()
	out, err := s.command("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", s.dir, "-U", "sandlot", "-d",
		database, "-c", statements).CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// create makes a server's folder, and starts the server.
func create(args ...string) (s *Server, err error) {
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(programs) == 0 {
		return nil, fmt.Errorf("PostgreSQL is not installed: run make tools")
	}
	s = &Server{bin: filepath.Dir(slices.Max(programs))}
	if s.dir, err = os.MkdirTemp("", "sandlot-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(s.dir)
		}
	}()
	if err = s.chooseAccount(); err != nil {
		return nil, err
	}
	data, password := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "password")
	if err = os.WriteFile(password, []byte(Password+"\n"), 0o644); err != nil {
		return nil, err
	}
	if out, err := s.command("initdb", "-D", data, "-U", "sandlot", "-E", "UTF8", "--locale=C.UTF-8", "-N",
		"-A", "trust",
		"--pwfile", password).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	os.Remove(password)
	access := "local all checked scram-sha-256\nlocal all all trust\n"
	if err = os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(access), 0o644); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return nil, err
	}
	// What the server writes survives its own death without fsync.
	s.cmd = s.command("postgres", append([]string{"-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off",
		"-c", "shared_buffers=16MB", "-c", "max_connections=100"}, args...)...)
	return s, s.Run()
}

// chooseAccount makes the server another user's if the test is root: PostgreSQL refuses root.
func (s *Server) chooseAccount() error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return err
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, int(uid), int(gid))
}

func (s *Server) command(program string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(s.bin, program), args...)
	c.Dir, c.Env = s.dir, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: s.account}
	return c
}

// Run starts the server's process, and waits until it answers.
func (s *Server) Run() error {
	c := s.command("postgres", s.cmd.Args[1:]...)
	c.Stdout, c.Stderr = s.log, s.log
	c.SysProcAttr.Setsid, c.SysProcAttr.Pdeathsig = true, syscall.SIGQUIT
	s.cmd, s.ended = c, make(chan struct{})
	started := make(chan error)
	go func(ended chan struct{}) {
		runtime.LockOSThread() // whose end would be the server's
		defer close(ended)
		err := c.Start()
		started <- err
		if err == nil {
			c.Wait()
		}
	}(s.ended)
	if err := <-started; err != nil {
		return err
	}
	for range 1200 {
		if s.command("pg_isready", "-q", "-h", s.dir).Run() == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("PostgreSQL ended:\n%s", s.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("PostgreSQL does not answer:\n%s", s.Log())
}

// Signal sends a signal to the server's first process.
func (s *Server) Signal(sig syscall.Signal) error { return s.cmd.Process.Signal(sig) }

// SignalAll sends a signal to all processes of the server.
func (s *Server) SignalAll(sig syscall.Signal) error {
	out, _ := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(s.cmd.Process.Pid)).Output()
	for _, pid := range bytes.Fields(out) {
		if n, err := strconv.Atoi(string(pid)); err == nil {
			syscall.Kill(n, sig)
		}
	}
	return s.Signal(sig)
}

// Stop ends the server at once, and waits. Run starts it again.
func (s *Server) Stop() {
	s.SignalAll(syscall.SIGCONT)
	s.Signal(syscall.SIGQUIT)
	<-s.ended
}

// Log returns what the server has written.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.log.Name())
	return string(text)
}

func (s *Server) remove() error {
	if s.ended != nil {
		s.Stop()
	}
	s.log.Close()
	return os.RemoveAll(s.dir)
}
