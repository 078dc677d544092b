package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/secret"
)

var writeState = flag.String("write-state", "", "write the state folder of a release with this version")

const (
	statesFolder = "testdata/states"
	// ownersFile has the ids of the sessions in a state folder.
	ownersFile = "owners.json"
	// What is stored in the state folders, by which it is seen that it is still there.
	storedFile   = "a file of the release before"
	storedSecret = "the value of a fixture"
	// fixtureKey is the key of secrets. It is as long as a key has to be.
	fixtureKey = "not a secret: a key for fixtures"
)

// The tokens of the users in state folders are seen to be none.
const (
	annsToken     = "token-of-ann-in-the-fixtures"
	operatorToken = "token-of-an-operator-in-the-fixtures"
	serviceToken  = "token-of-a-service-in-the-fixtures"
)

// owners says whose the sessions in a state folder are.
type owners struct{ Home, Session string }

// TestStatesOfReleases: today's server starts with the state folder of each release, and everything is there: tokens
// with their rights, sessions with their files, secrets, third-party MCP servers and what was granted.
func TestStatesOfReleases(t *testing.T) {
	archives, err := filepath.Glob(filepath.Join(statesFolder, "*.tar.gz"))
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			s := prepare(t)
			unpackState(t, archive, s.State)
			var of owners
			text, err := os.ReadFile(filepath.Join(s.State, ownersFile))
			if err == nil {
				err = json.Unmarshal(text, &of)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.begin(nil)
			s.checkState(of)
		})
	}
}

// checkState checks that a state folder has everything that TestWriteState puts there.
func (s *server) checkState(of owners) {
	t := s.t
	t.Helper()
	if code, _, _ := s.request("GET", "/v1/sessions", nil); code != 401 {
		t.Errorf("without a token: %d", code)
	}
	c := s.connect(newer, annsToken, nil)
	for _, session := range []string{of.Home, of.Session} {
		r := c.code(session, "print(open('/workspace/f').read(), end='')")
		if !strings.Contains(r.All, storedFile+"\n") || r.session() != session || r.Fields["session_created"] != false {
			t.Errorf("%s: %q %v", session, r.All, r.Fields)
		}
	}
	env := ""
	for name := range c.toolNames() {
		if strings.HasSuffix(name, "_env") {
			env = name
		}
	}
	if r := c.call(env, nil); !strings.Contains(r.Text, `"ODD_KEY": "`+storedSecret+`"`) {
		t.Errorf("the server has %s", r.Text)
	}
	if out, code := s.cliAs(annsToken, "", "secret", "list"); code != 0 || !strings.Contains(out, "KEY") ||
		!strings.Contains(out, "BOUND") || !strings.Contains(out, "api.example.com") {
		t.Errorf("secrets: %d %s", code, out)
	}
	list, errs, code := s.cli("token", "list", "--json")
	if code != 0 || !strings.Contains(list, "ann") || !strings.Contains(list, "code.execute") {
		t.Errorf("tokens: %d %s %s", code, list, errs)
	}
	if out, code := s.cliAs(operatorToken, "", "events", "--principal", "ann"); code != 0 ||
		!strings.Contains(out, of.Home) {
		t.Errorf("an operator sees %d %s", code, out)
	}
	if out, code := s.cliAs(annsToken, "", "events", "--principal", "olga"); code == 0 {
		t.Errorf("ann sees %s", out)
	}
	service := s.connect(newer, serviceToken, nil)
	if r := service.code("new", "6*7"); r.Text != "42" {
		t.Errorf("the service: %s", r.All)
	}
	if out, errs, code := s.cli("events", "verify"); code != 0 {
		t.Errorf("events: %d %s %s", code, out, errs)
	}
}

// TestWriteState writes the state folder of a release, with -write-state. At all other times it checks that what it
// would write is complete, and has nothing of this machine.
func TestWriteState(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	if err := os.WriteFile(filepath.Join(s.State, "secrets.key"), []byte(fixtureKey), 0o600); err != nil {
		t.Fatal(err)
	}
	s.begin([]string{"SANDLOT_SNAPSHOTS=false", "SANDLOT_ON_STOP=end"})
	s.token("ann")
	s.token("olga", "--role", "operator")
	s.token("ci", "--service", "--scope", "code.execute", "--scope", "session.create")
	s.nameTokens(map[string]string{"ann": annsToken, "olga": operatorToken, "ci": serviceToken})
	var of owners
	c := s.connect(newer, annsToken, nil)
	write := "_ = open('/workspace/f', 'w').write('" + storedFile + "')"
	of.Home, of.Session = c.code("home", write).session(), c.code("new", write).session()
	s.put(annsToken, "odd.py")
	for _, call := range [][]string{
		{storedSecret, "secret", "set", "KEY"},
		{storedSecret, "secret", "set", "BOUND", "--host", "api.example.com"},
		{"", "mcp", "add", "odd", "--env", "ODD_KEY=${secret:KEY}", "--", "python3", "/workspace/odd.py", "plain",
			"odd"},
	} {
		if out, code := s.cliAs(annsToken, call[0], call[1:]...); code != 0 {
			t.Fatalf("%q: %d %s", call, code, out)
		}
	}
	s.checkState(of)
	// As after a restart of the machine: without sandboxes, and with all files.
	if out, errs, code := s.cli("stop", "--sessions"); code != 0 {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	s.cmd.Wait()
	text, err := json.Marshal(of)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.State, ownersFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	archive := packState(t, s.State)
	if len(archive) > 200_000 {
		t.Errorf("it has %d bytes", len(archive))
	}
	if *writeState != "" {
		if err := os.WriteFile(filepath.Join(statesFolder, *writeState+".tar.gz"), archive, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.launch() // for what the end of each test looks for
}

// nameTokens replaces the token of each user.
func (s *server) nameTokens(tokens map[string]string) {
	s.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(s.State, "sandlot.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	for user, token := range tokens {
		r, err := db.Exec(`UPDATE tokens SET hash = ? WHERE "user" = ?`, secret.Hash(token), user)
		if err != nil {
			s.t.Fatal(err)
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			s.t.Fatal(n, err)
		}
	}
}

// machineFolders are those of a state folder that a server makes anew, of the machine's own programs.
var machineFolders = []string{"docker", "roots", "runsc", "sandboxes", "snapshots"}

// packState returns an archive of a state folder. It has no time and no user, and no path of this machine.
func packState(t *testing.T, state string) []byte {
	t.Helper()
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	to := tar.NewWriter(z)
	err = filepath.WalkDir(state, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, state), "/")
		if err != nil || name == "" {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		header := tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: time.Unix(0, 0)}
		if slices.Contains(machineFolders, name) {
			return fs.SkipDir
		}
		if e.IsDir() {
			header.Name, header.Typeflag = name+"/", tar.TypeDir
			return to.WriteHeader(&header)
		}
		if !e.Type().IsRegular() {
			t.Errorf("%s is not a file", name)
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, own := range []string{state, here} {
			if bytes.Contains(data, []byte(own)) {
				t.Errorf("%s has the path %s", name, own)
			}
		}
		header.Typeflag, header.Size = tar.TypeReg, int64(len(data))
		if err := to.WriteHeader(&header); err != nil {
			return err
		}
		_, err = to.Write(data)
		return err
	})
	if err := errors.Join(err, to.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// unpackState unpacks the archive of a state folder.
func unpackState(t *testing.T, archive, state string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(z); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(state, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, fs.FileMode(header.Mode))
		} else {
			var data []byte
			if data, err = io.ReadAll(entries); err == nil {
				err = os.WriteFile(path, data, fs.FileMode(header.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
