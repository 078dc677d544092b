package gocache

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test's own program is the cache of the Go that a test starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "gocache" {
		os.Exit(Run(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// answers returns the answers to requests, each with the text of its body, if it has one.
func answers(t *testing.T, own, shared string, requests ...any) (all []response) {
	t.Helper()
	var in, out bytes.Buffer
	for _, r := range requests {
		if text, ok := r.(string); ok {
			in.WriteString(text)
			continue
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(b, "\n\n"...))
	}
	if err := serve(&in, &out, own, shared); err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(&out); ; {
		var a response
		if err := d.Decode(&a); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
}

func body(text string) string { return `"` + base64.StdEncoding.EncodeToString([]byte(text)) + "\"\n" }

// TestServe: what is put is found again, behind nothing else; the shared cache is read, and never written.
func TestServe(t *testing.T) {
	own, shared := filepath.Join(t.TempDir(), "own"), filepath.Join(t.TempDir(), "shared")
	action, other := []byte("action of 32 bytes or so ........"), []byte("other")
	for _, text := range []string{"x", "xy", "output", strings.Repeat("long ", 100_000), ""} {
		output := sha256.Sum256([]byte(text))
		put := []any{request{ID: 2, Command: "put", ActionID: action, OutputID: output[:], BodySize: int64(len(text))}}
		if text != "" {
			put = append(put, body(text))
		}
		got := answers(t, own, shared, append(append([]any{request{ID: 1, Command: "get", ActionID: other}}, put...),
			request{ID: 3, Command: "get", ActionID: action}, request{ID: 4, Command: "close"}, request{ID: 5, Command: "get"})...)
		if len(got) != 5 || len(got[0].KnownCommands) != 3 || !got[1].Miss || got[2].Err != "" || got[3].Miss ||
			got[3].DiskPath != got[2].DiskPath || !bytes.Equal(got[3].OutputID, output[:]) || got[3].Size != int64(len(text)) ||
			got[3].Time == nil || got[4].ID != 4 {
			t.Fatalf("%.20q: %+v", text, got)
		}
		if data, err := os.ReadFile(got[3].DiskPath); err != nil || string(data) != text {
			t.Errorf("%.20q: %.20q, %v", text, data, err)
		}
	}
	// The same folder as the shared one of another sandbox.
	before := files(t, own)
	elsewhere := t.TempDir()
	got := answers(t, elsewhere, own, request{ID: 1, Command: "get", ActionID: action},
		request{ID: 2, Command: "put", ActionID: other, OutputID: other, BodySize: 1}, body("y"))
	if got[1].Miss || !strings.HasPrefix(got[1].DiskPath, own) || !strings.HasPrefix(got[2].DiskPath, elsewhere) {
		t.Errorf("%+v", got)
	}
	if after := files(t, own); after != before {
		t.Errorf("the shared cache was written to: %s, before %s", after, before)
	}
}

// files returns the files of a folder.
func files(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestBroken: an entry that is broken is a miss, and a request that is broken no more than an error.
func TestBroken(t *testing.T) {
	own := t.TempDir()
	action := []byte{0xab, 1}
	entry := filepath.Join(own, "ab", "ab01-a")
	if err := os.Mkdir(filepath.Dir(entry), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "v1", "v2 ab01 cd02 0 0", "v1 ab02 cd02 0 0", "v1 ab01 nohex 0 0", "v1 ab01 cd02 x 0",
		"v1 ab01 cd02 7 0", "v1 ab01 ../../x 0 0"} {
		if err := os.WriteFile(entry, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := answers(t, own, own, request{ID: 1, Command: "get", ActionID: action}); !got[1].Miss {
			t.Errorf("%q: %+v", text, got)
		}
	}
	got := answers(t, own, own, request{ID: 1, Command: "get"}, request{ID: 2, Command: "put", ActionID: action},
		request{ID: 3, Command: "other"})
	if !got[1].Miss || got[2].Err == "" || got[3].Err == "" {
		t.Errorf("%+v", got)
	}
	for _, in := range []string{"{", "7\n", `{"ID":1,"Command":"put","ActionID":"AA==","OutputID":"AA==","BodySize":9}` + "\n\n\"AA==",
		`{"ID":1,"Command":"put","ActionID":"AA==","OutputID":"AA==","BodySize":1}` + "\nAA==\n"} {
		if err := serve(strings.NewReader(in), io.Discard, own, own); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
	if Run(nil) != 2 {
		t.Error("without an argument")
	}
}

// TestGo: Go itself takes from the shared cache what is there, and has the rest in its own.
func TestGo(t *testing.T) {
	shared, own := t.TempDir(), t.TempDir()
	list := func(env []string, name string) string {
		t.Helper()
		c := exec.Command("go", "list", "-export", "-f", "{{.Export}}", name)
		c.Dir = "/"
		c.Env = append(append(os.Environ(), "GOFLAGS=", "GOTOOLCHAIN=local", "GOPROXY=off", "GOENV=off"), env...)
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if at := list([]string{"GOCACHEPROG=", "GOCACHE=" + shared}, "internal/goarch"); !strings.HasPrefix(at, shared) {
		t.Fatalf("the cache is in %s", at)
	}
	before := files(t, shared)
	env := []string{"GOCACHE=" + own, fmt.Sprintf("GOCACHEPROG=%s gocache %s", os.Args[0], shared)}
	for name, dir := range map[string]string{"internal/goarch": shared, "internal/goos": own} {
		for range 2 {
			if at := list(env, name); !strings.HasPrefix(at, dir) {
				t.Errorf("%s is in %s, not in %s", name, at, dir)
			}
		}
	}
	if after := files(t, shared); after != before {
		t.Errorf("the shared cache was written to: %s, before %s", after, before)
	}
}
