package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestUnit: systemd finds no fault with the unit, and its exposure is small.
func TestUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30",
		"../deploy/sandlot.service").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, _ = exec.Command("systemd-analyze", "verify", "../deploy/sandlot.service").CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "sandlot.service") &&
			!strings.Contains(line, "/opt/sandlot/sandlot is not executable") {
			t.Error(line) // a word that systemd does not know, for one
		}
	}
}

// TestImagesArePinned: whoever builds the image again starts from the same bytes.
func TestImagesArePinned(t *testing.T) {
	text, err := os.ReadFile("../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`^ARG ([A-Z_]+)=[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}$`)
	bases := map[string]bool{}
	stages := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if found := pinned.FindStringSubmatch(line); found != nil {
			bases[found[1]] = true
		}
		if strings.HasPrefix(line, "FROM ") {
			stages++
			if base := strings.TrimPrefix(strings.Fields(line)[1], "$"); !bases[base] {
				t.Errorf("%s: no digest", line)
			}
		}
	}
	if stages != 2 {
		t.Errorf("%d base images were found", stages)
	}
}

// TestSeccompProfile: Docker's profile for the server lets it make sandboxes, and
// nothing that asks for a capability beside that; and compose uses it.
func TestSeccompProfile(t *testing.T) {
	text, err := os.ReadFile("../deploy/seccomp.json")
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Default  string `json:"defaultAction"`
		Syscalls []struct {
			Names    []string        `json:"names"`
			Action   string          `json:"action"`
			Args     []any           `json:"args"`
			Includes json.RawMessage `json:"includes"`
		} `json:"syscalls"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	free := map[string]bool{}
	for _, s := range p.Syscalls {
		for _, n := range s.Names {
			if s.Action == "SCMP_ACT_ALLOW" && len(s.Args) == 0 && len(s.Includes) == 0 {
				free[n] = true
			}
		}
	}
	for _, n := range []string{"clone", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "ptrace"} {
		if !free[n] {
			t.Errorf("gVisor needs %s", n)
		}
	}
	for _, n := range []string{"bpf", "init_module", "finit_module", "kexec_load", "keyctl", "add_key",
		"open_by_handle_at", "reboot", "userfaultfd", "swapon", "settimeofday", "iopl", "fsopen", "move_mount"} {
		if free[n] {
			t.Errorf("nobody needs %s", n)
		}
	}
	compose, err := os.ReadFile("../deploy/compose.yaml")
	if err != nil || p.Default != "SCMP_ACT_ERRNO" {
		t.Error(err, p.Default)
	}
	lines := strings.Fields(string(compose))
	for _, want := range []string{"seccomp:./seccomp.json", "read_only:", "no-new-privileges:true"} {
		if !slices.Contains(lines, want) {
			t.Errorf("compose.yaml has no %s", want)
		}
	}
}
