package specfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// TestRecord: what is written is read again, with a runtime's own fields, and nothing else is.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	spec := sandbox.Spec{ID: "a", Template: &image.Template{Name: "host"}, Limits: sandbox.Limits{CPUs: 2},
		Mounts: []sandbox.Mount{{Source: "/s", Target: "/t", ReadOnly: true}}, Secret: make([]byte, wire.SecretLen)}
	type record struct {
		Record
		PID int `json:"pid"`
	}
	if err := Write(dir, record{Of(spec, "agent-1"), 7}); err != nil {
		t.Fatal(err)
	}
	var read record
	if err := Read(dir, &read); err != nil || read.PID != 7 || read.Agent != "agent-1" {
		t.Errorf("%+v, %v", read, err)
	}
	if got, err := read.Spec("a"); err != nil || !reflect.DeepEqual(got, spec) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := read.Spec("b"); !errors.Is(err, ErrBroken) {
		t.Errorf("another sandbox's: %v", err)
	}
	for _, text := range []string{"", "{", `{"id":"a"}`, `{"id":"a","secret":"00"}`, `{"id":"a","secret":"?"}`,
		`{"id":"` + strings.Repeat("a", maxSize) + `"}`} {
		if err := os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		read := record{}
		err := Read(dir, &read)
		if err == nil {
			_, err = read.Spec("a")
		}
		if !errors.Is(err, ErrBroken) {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	path := filepath.Join(dir, Name)
	if err := errors.Join(Write(dir, Of(spec, "")), os.Rename(path, path+".old"),
		os.Symlink(path+".old", path)); err != nil {
		t.Fatal(err)
	}
	if err := Read(dir, &read); err == nil {
		t.Error("followed a link")
	}
}

// TestAgents: the agents of all sandboxes are told; one whose record is broken may have any.
func TestAgents(t *testing.T) {
	dir := t.TempDir()
	if names, err := Agents(filepath.Join(dir, "none")); err != nil || len(names) != 0 {
		t.Errorf("no folder: %q, %v", names, err)
	}
	template := &image.Template{Name: "host"}
	for id, agent := range map[string]string{"a": "agent-1", "b": "agent-2", "c": "", "d": "agent-1", "empty": "-"} {
		sub := filepath.Join(dir, id)
		err := os.Mkdir(sub, 0o700)
		if agent != "-" {
			err = errors.Join(err, Write(sub, Of(sandbox.Spec{ID: id, Template: template}, agent)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if names, err := Agents(dir); err != nil || strings.Join(names, " ") != "agent-1 agent-2 agent-1" {
		t.Errorf("%q, %v", names, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b", Name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Agents(dir); !errors.Is(err, ErrBroken) {
		t.Errorf("a broken record: %v", err)
	}
}
