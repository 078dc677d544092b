// Package specfile owns the file in a sandbox's folder from which the next server makes the sandbox's Spec again.
package specfile

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Name is the name of the file, which only the server's user may read.
const Name = "sandbox.json"

// maxSize bounds the file, in bytes.
const maxSize = 1 << 20

// ErrBroken means that a file is not what Write has written.
var ErrBroken = errors.New("its record is broken")

// Record is what every runtime stores of a sandbox. One that stores more embeds it.
type Record struct {
	ID       string          `json:"id"`
	Template string          `json:"template"`
	Limits   sandbox.Limits  `json:"limits"`
	Mounts   []sandbox.Mount `json:"mounts"`
	Secret   string          `json:"secret"`
	// Agent is the name of the file with its agent's program, if that is in the runtime's folder for such.
	Agent string `json:"agent,omitempty"`
}

// Of returns the record of a sandbox with that agent.
func Of(spec sandbox.Spec, agent string) Record {
	return Record{ID: spec.ID, Template: spec.Template.Name, Limits: spec.Limits, Mounts: spec.Mounts,
		Secret: hex.EncodeToString(spec.Secret), Agent: agent}
}

// Spec returns the spec of the sandbox with that id. Its template has only the name.
func (r Record) Spec(id string) (sandbox.Spec, error) {
	secret, err := hex.DecodeString(r.Secret)
	if err != nil || len(secret) != wire.SecretLen || r.ID != id {
		return sandbox.Spec{}, ErrBroken
	}
	return sandbox.Spec{ID: id, Template: &image.Template{Name: r.Template}, Limits: r.Limits, Mounts: r.Mounts,
		Secret: secret}, nil
}

// Agents returns the names of the files with agents that the sandboxes in a folder have. The error is that of a record
// that cannot be read.
func Agents(sandboxesDir string) (names []string, err error) {
	entries, err := os.ReadDir(sandboxesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		var r Record
		if readErr := Read(filepath.Join(sandboxesDir, e.Name()), &r); readErr == nil && r.Agent != "" {
			names = append(names, r.Agent)
		} else if !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
	}
	return names, err
}

// Write replaces the file in a sandbox's folder.
func Write(dir string, record any) error {
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, Name), text)
}

// Read reads the file in a sandbox's folder. It follows no link, and waits for nobody.
func Read(dir string, record any) error {
	text, err := atomicfile.Read(filepath.Join(dir, Name), maxSize)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, record); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}
