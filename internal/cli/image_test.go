package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/oci"
	"sandlot/internal/proc"
)

// writeTar writes an archive of a root file system with one file.
func writeTar(t *testing.T, path, text string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "f", Size: int64(len(text)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte(text))
	if err := errors.Join(w.Close(), os.WriteFile(path, archive.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The commands of images work on the state folder's store, without a server.
func TestImageCommands(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root.tar")
	writeTar(t, root, "hello")
	run := func(code int, args ...string) (out, problems string) {
		t.Helper()
		var o, e bytes.Buffer
		all := append([]string{"--state-dir", filepath.Join(dir, "state"), "image"}, args...)
		if got := Main(all, strings.NewReader(""), &o, &e); got != code {
			t.Fatalf("sandlot %v ends with %d: %s%s", all, got, o.String(), e.String())
		}
		return o.String(), e.String()
	}
	if out, _ := run(0, "list"); !strings.HasPrefix(out, "NAME ") || strings.Count(out, "\n") != 1 {
		t.Errorf("the empty list is %q", out)
	}
	out, progress := run(0, "import", root, "my-image:1")
	if !strings.HasPrefix(out, "my-image:1 is ready: linux/") || !strings.Contains(progress, "loaded") {
		t.Errorf("import prints %q, %q", out, progress)
	}
	var images []oci.Image
	out, _ = run(0, "list", "--json")
	if err := json.Unmarshal([]byte(out), &images); err != nil || len(images) != 1 || images[0].Name != "my-image:1" {
		t.Errorf("the list is %s, %v", out, err)
	}
	if out, _ := run(0, "list"); !strings.Contains(out, "my-image:1  sha256:") {
		t.Errorf("the list is %q", out)
	}
	if _, problems := run(1, "import", root, "My-Image"); !strings.Contains(problems, "lower case") {
		t.Errorf("a wrong name: %q", problems)
	}
	if _, problems := run(2, "pull"); !strings.Contains(problems, "pull IMAGE") {
		t.Errorf("pull without an image: %q", problems)
	}
	if out, _ := run(0, "prune"); out != "0 B freed\n" {
		t.Errorf("prune prints %q", out)
	}
	settings := filepath.Join(dir, "state", "sandlot.yaml")
	if err := os.WriteFile(settings, []byte("templates:\n  mine: {image: my-image:1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, problems := run(1, "remove", "my-image:1"); !strings.Contains(problems, "is used by the template mine") {
		t.Errorf("the image of a template: %q", problems)
	}
	digest := images[0].Digest
	if err := os.MkdirAll(filepath.Join(dir, "state", "templates"), 0o700); err != nil {
		t.Fatal(err)
	}
	// The template is of another image now, whose name this one has had.
	text := "templates:\n  mine: {image: other:1}\n"
	if err := errors.Join(os.WriteFile(settings, []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, "state", "templates", "mine.json"),
			[]byte(`{"base": "sha256:0", "image": {"ID": "`+digest+`"}}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"my-image:1", digest} {
		if _, problems := run(1, "remove", ref); !strings.Contains(problems, "is used by the template mine") {
			t.Errorf("%s, of which a template was built: %q", ref, problems)
		}
	}
	// A server runs with settings that this command does not have.
	started, err := proc.StartTicks(os.Getpid())
	lock := filepath.Join(dir, "state", "lock")
	if err := errors.Join(err, os.WriteFile(settings, nil, 0o600), os.WriteFile(lock, fmt.Appendf(nil, "%d %d\n",
		os.Getpid(), started), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, problems := run(1, "remove", digest); !strings.Contains(problems, "is used by the template mine") {
		t.Errorf("the image of a template of the server: %q", problems)
	}
	if err := errors.Join(os.Remove(lock), os.WriteFile(settings, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	writeTar(t, root, "other")
	run(0, "import", root, "my-image:1") // the name means another image
	run(0, "prune")
	out, _ = run(0, "list", "--json")
	if err := json.Unmarshal([]byte(out), &images); err != nil || len(images) != 2 {
		t.Errorf("after prune there are %s, %v", out, err)
	}
	if err := os.Remove(filepath.Join(dir, "state", "templates", "mine.json")); err != nil {
		t.Fatal(err)
	}
	writeTar(t, root, "built")
	run(0, "import", root, "sandlot/mine:"+strings.Repeat("a", 32)) // as an earlier build has it
	run(0, "prune")
	out, _ = run(0, "list", "--json")
	if err := json.Unmarshal([]byte(out), &images); err != nil || len(images) != 1 || images[0].Digest == digest {
		t.Errorf("without the template, after prune there are %s, %v", out, err)
	}
	if err := os.Remove(settings); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(0, "remove", "my-image:1"); out != "my-image:1 is removed\n" {
		t.Errorf("remove prints %q", out)
	}
	if _, problems := run(1, "remove", "my-image:1"); !strings.Contains(problems, "there is no image my-image:1") {
		t.Errorf("the second remove: %q", problems)
	}
}
