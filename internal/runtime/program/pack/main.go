// Pack builds the agents for all processors and compresses them for the program sandlot. Given a folder, it also
// puts the agent for this machine's processor there. It runs in the root of the repository:
//
//	go run ./internal/runtime/program/pack bin
//
// The agents are the same for the same sources: they name no commit, so that servers of two versions with one agent
// have one file for it.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

const folder = "internal/runtime/program/agents"

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "sandlot-pack-")
	if err == nil {
		err = errors.Join(pack(dir, os.Args[1:]), os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func pack(dir string, copies []string) error {
	var sums bytes.Buffer
	for _, arch := range []string{"amd64", "arm64"} {
		program, err := build(filepath.Join(dir, arch), arch)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  linux-%s\n", sha256.Sum256(program), arch)
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		if err := replace(filepath.Join(folder, "linux-"+arch+".zst"), w.EncodeAll(program, nil), 0o644); err != nil {
			return err
		}
		for _, to := range copies {
			if arch != runtime.GOARCH {
				continue
			}
			if err := replace(filepath.Join(to, "sandlot-agent"), program, 0o755); err != nil {
				return err
			}
		}
	}
	return replace(filepath.Join(folder, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// build builds the agent for a processor and returns it.
func build(path, arch string) ([]byte, error) {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path,
		"./cmd/sandlot-agent")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("building the agent for %s: %w", arch, err)
	}
	return os.ReadFile(path)
}

// replace gives a file a content, and leaves one that has it as it is: it may be in use, and preboot images depend on
// its times.
func replace(path string, content []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.WriteFile(path+".new", content, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
