package docker

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// record is what a sandbox's file sandbox.json holds. The file has mode 0600.
type record struct {
	ID       string          `json:"id"`
	Template string          `json:"template"`
	Limits   sandbox.Limits  `json:"limits"`
	Mounts   []sandbox.Mount `json:"mounts"`
	Secret   string          `json:"secret"`
}

// record returns the box's record. The caller holds b.mu, or no other goroutine has the box yet.
func (b *box) record() record {
	return record{ID: b.spec.ID, Template: b.spec.Template.Name, Limits: b.spec.Limits, Mounts: b.spec.Mounts,
		Secret: hex.EncodeToString(b.spec.Secret)}
}

func (r *Runtime) storeRecord(rec record) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(r.sandboxDir(rec.ID), "sandbox.json")
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// maxRecord bounds sandbox.json, in bytes.
const maxRecord = 1 << 20

var errBrokenRecord = errors.New("its record is broken")

// readRecord returns the spec in the record of a sandbox.
func (r *Runtime) readRecord(id string) (sandbox.Spec, error) {
	path := filepath.Join(r.sandboxDir(id), "sandbox.json")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return sandbox.Spec{}, err
	}
	defer f.Close()
	var rec record
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return sandbox.Spec{}, err
	}
	if json.Unmarshal(text, &rec) != nil || rec.ID != id {
		return sandbox.Spec{}, errBrokenRecord
	}
	secret, err := hex.DecodeString(rec.Secret)
	if err != nil || len(secret) != wire.SecretLen {
		return sandbox.Spec{}, errBrokenRecord
	}
	return sandbox.Spec{ID: id, Template: &image.Template{Name: rec.Template}, Limits: rec.Limits, Mounts: rec.Mounts,
		Secret: secret}, nil
}
