package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/image/imagetest"
)

// TestDoctorOfShells: where there is neither Python nor bash, as in a new Alpine, sandboxes work, and the doctor says
// so. What it cannot try it says, too.
func TestDoctorOfShells(t *testing.T) {
	t.Parallel()
	imagetest.Install(t, "busybox", "busybox-static")
	for name, c := range map[string]struct{ make, want string }{
		"busybox": {`cp "$(command -v busybox)" bin/busybox; ln -s busybox bin/sh`, "what no rule allows was refused"},
		"dash alone": {`cp -L /bin/dash bin/sh; cp -L --parents $(ldd /bin/dash | grep -o '/[^ ]*') .`,
			"neither bash nor nc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, file := t.TempDir(), filepath.Join(t.TempDir(), "sandlot.yaml")
			const folders = `set -e; cd "$1"; mkdir -p bin etc root tmp
printf 'root:x:0:0:root:/root:/bin/sh\n' > etc/passwd; `
			if out, err := exec.Command("sh", "-c", folders+c.make, "sh", root).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			settings := fmt.Sprintf("default_template: small\ntemplates: {small: {rootfs: %s, languages: [{name: sh, "+
				"command: [/bin/sh]}]}}\n", root)
			if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			s := start(t, "SANDLOT_CONFIG="+file)
			out, errs, code := s.cli("doctor")
			if code != 0 || !strings.Contains(out, "answered 42 for 6*7") || !strings.Contains(out, c.want) {
				t.Errorf("%d, want %q\n%s%s", code, c.want, out, errs)
			}
		})
	}
}

// TestDoctorWithoutExecution: where temporary files cannot be executed, as on hardened machines, the doctor says what
// to do.
func TestDoctorWithoutExecution(t *testing.T) {
	t.Parallel()
	s := prepare(t)
	folder := t.TempDir()
	// The mount ends with the namespace.
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		`mount -t tmpfs -o noexec none "$1" && TMPDIR=$1 exec "$2" --state-dir "$3" doctor`, "sh", folder, s.program, s.State)
	cmd.Env = append(os.Environ(), "SANDLOT_NETWORK_REGISTRIES=none")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is mounted with noexec, where gVisor does not run") {
		t.Errorf("%v\n%s", err, out)
	}
}
