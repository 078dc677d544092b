package guest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

const testCA = "-----BEGIN CERTIFICATE-----\nof the session\n-----END CERTIFICATE-----\n"

// The agent adds a certificate to the files that there are, once; what programs of the sandbox have put in their place
// does no harm, and makes the agent wait for nothing.
func TestTrust(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string { b, _ := os.ReadFile(path); return string(b) }
	bundle, second, untouched := write("bundle", "first\n"), write("second", "first\n"), write("untouched", "mine")
	link, pipe, missing := filepath.Join(dir, "link"), filepath.Join(dir, "pipe"), filepath.Join(dir, "missing")
	huge := write("huge", "")
	stored, node := filepath.Join(dir, "stored"), write("node", "extra\n")
	if err := os.Symlink(untouched, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, maxTrusted+1); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SSL_CERT_FILE": bundle, "CURL_CA_BUNDLE": bundle, "OTHER": "x", nodeVariable: node}
	m := &agentv1.Bound{Ca: []byte(testCA), Bundles: []string{bundle, second, link, pipe, missing, huge, dir},
		Files: map[string][]byte{stored: []byte("a store"), filepath.Join(dir, "none/x"): []byte("x"),
			pipe: []byte("x")}}
	for range 2 {
		done := make(chan map[string]string, 1)
		go func() { done <- trust(filepath.Join(dir, "trust"), env, m) }()
		select {
		case changed := <-done:
			if len(changed) != 1 || read(changed[nodeVariable]) != "extra\n"+testCA {
				t.Errorf("changed variables: %v", changed)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the agent waits")
		}
		if read(bundle) != "first\n"+testCA || read(second) != "first\n"+testCA || read(untouched) != "mine" ||
			read(stored) != "a store" {
			t.Errorf("%q, %q, %q, %q", read(bundle), read(second), read(untouched), read(stored))
		}
		if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
			t.Error("it made a folder")
		}
	}

	// Java has a store of the agent's, where there is a Java, beside its own options.
	write("java", "")
	m.Java, m.JavaStores = []byte("java store"), []string{second, link, missing}
	java := trust(filepath.Join(dir, "trust"), map[string]string{"PATH": dir, javaVariable: "-Xmx1g"}, m)[javaVariable]
	store := filepath.Join(dir, "trust", "java.p12")
	if !strings.HasPrefix(java, "-Xmx1g -Djavax.net.ssl.trustStore="+store+" ") || read(store) != "java store" ||
		read(second) != "java store" || read(untouched) != "mine" {
		t.Errorf("Java has %q, and the store %q", java, read(store))
	}

	// Where the file cannot be changed, the variables that name it name a copy.
	linked := map[string]string{"SSL_CERT_FILE": link, "OTHER": "x"}
	m.Bundles = []string{link}
	changed := trust(filepath.Join(dir, "trust"), linked, m)
	if read(changed["SSL_CERT_FILE"]) != "mine"+testCA || read(untouched) != "mine" || changed["OTHER"] != "" {
		t.Errorf("changed variables: %v", changed)
	}
}

// The variables of the last Bound count, for programs that start then.
func TestBoundVariables(t *testing.T) {
	a := New(Config{Env: []string{"OWN=own", "BOTH=own"}})
	set := func(env map[string]string) {
		a.applyBound(context.Background(), &agentv1.Bound{Env: env})
	}
	has := func(want string) {
		t.Helper()
		if got := strings.Join(a.environment(nil, false), " "); got != want {
			t.Errorf("the environment is %s; want %s", got, want)
		}
	}
	set(map[string]string{"KEY": "placeholder", "BOTH": "placeholder"})
	has("BOTH=placeholder KEY=placeholder OWN=own")
	set(map[string]string{"NEW": "x"})
	has("BOTH=own NEW=x OWN=own")
	set(nil)
	has("BOTH=own OWN=own")
}

// The agent copies no file that programs of the sandbox could not read themselves, wherever their links lead.
func TestTrustReadsNoPrivateFile(t *testing.T) {
	dir := t.TempDir()
	folder := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	open, private, fixed := folder("open", 0o777), folder("private", 0o700), folder("fixed", 0o755)
	secret := filepath.Join(private, "secret")
	for path, mode := range map[string]os.FileMode{secret: 0o644, filepath.Join(open, "own"): 0o644,
		filepath.Join(open, "closed"): 0o600, filepath.Join(fixed, "real"): 0o644} {
		if err := os.WriteFile(path, []byte("text"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, target := range map[string]string{"open/link": secret, "open/folder": private,
		"fixed/through": "../open/link",
		"fixed/link":    "folder/real", "fixed/folder": fixed, "fixed/loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(secret, filepath.Join(open, "hard")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"fixed/real": true, "fixed/link": true, "open/own": true,
		"open/link":          false,
		"open/folder/secret": false, "fixed/through": false, "open/hard": false, "open/closed": false,
		"fixed/loop": false, "fixed": false} {
		if text, ok := readTrusted(filepath.Join(dir, name)); ok != want || ok && string(text) != "text" {
			t.Errorf("%s: %q, %v", name, text, ok)
		}
	}
	link := filepath.Join(open, "link")
	env := map[string]string{"SSL_CERT_FILE": link, nodeVariable: link}
	changed := trust(filepath.Join(dir, "trust"), env, &agentv1.Bound{Ca: []byte(testCA), Bundles: []string{link}})
	for name, path := range changed {
		if b, _ := os.ReadFile(path); strings.Contains(string(b), "text") {
			t.Errorf("%s names a copy of a private file", name)
		}
	}
}

// Variables of the session replace those of bound secrets, and a call's replace them.
func TestSessionVariables(t *testing.T) {
	a := New(Config{Env: []string{"OWN=own", "BOTH=own"}})
	configure := func(r *agentv1.ConfigureRequest) {
		t.Helper()
		if _, err := a.Configure(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	has := func(call map[string]string, want string) {
		t.Helper()
		if got := strings.Join(a.environment(call, false), " "); got != want {
			t.Errorf("the environment is %s; want %s", got, want)
		}
	}
	configure(&agentv1.ConfigureRequest{Bound: &agentv1.Bound{Env: map[string]string{"KEY": "placeholder"}}})
	configure(&agentv1.ConfigureRequest{Variables: &agentv1.Variables{Env: map[string]string{"KEY": "s", "BOTH": "s"}}})
	has(nil, "BOTH=s KEY=s OWN=own")
	has(map[string]string{"BOTH": "call"}, "BOTH=call KEY=s OWN=own")
	configure(&agentv1.ConfigureRequest{})
	has(nil, "BOTH=s KEY=s OWN=own")
	configure(&agentv1.ConfigureRequest{Variables: &agentv1.Variables{Env: map[string]string{"NEW": "s"}}})
	has(nil, "BOTH=own KEY=placeholder NEW=s OWN=own")
}
