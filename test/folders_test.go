package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVolumesUnprivileged: a server without root seals a volume that is full in the
// sandboxes that run; one in which a sandbox has closed a folder to it, too.
func TestVolumesUnprivileged(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(shared), 0o755), os.Chown(shared, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	s := startUnprivileged(t, "SANDLOT_VOLUMES="+shared+":/share", "SANDLOT_VOLUME_LIMIT_MB=16")
	c := s.connect(older, "", nil)
	proven(t, c, "home")
	is := func(refused bool, told string) func() bool {
		return func() bool {
			r := c.shell("home", "{ echo more > /share/log && echo written; } 2>&1")
			return strings.Contains(r.All, map[bool]string{true: "Read-only file system", false: "written"}[refused]) &&
				strings.Contains(c.call("get_volume_path", nil).All, told)
		}
	}
	c.shell("home", "mkdir -p /share/d/e; head -c 30000000 /dev/zero > /share/d/e/f; chmod 0 /share/d")
	until(t, "a closed folder makes it full", is(true, "cannot be read by the server"))
	if i, err := os.Stat(filepath.Join(shared, "d")); err != nil || i.Mode().Perm() != 0 {
		t.Errorf("the folder's mode is %v, %v", i.Mode(), err)
	}
	if err := os.Chmod(filepath.Join(shared, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	until(t, "what it hid makes it full", is(true, "MB; it can only be read until something in it is removed"))
	if err := os.RemoveAll(filepath.Join(shared, "d")); err != nil {
		t.Fatal(err)
	}
	until(t, "it can be written again", is(false, ""))
}

// TestFolders is hostile use of the folders that a sandbox shares with the host:
// a volume that is full, and a workspace that is very deep.
func TestFolders(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	settings := []string{"SANDLOT_VOLUMES=" + shared + ":/share", "SANDLOT_VOLUME_LIMIT_MB=16", "SANDLOT_DISK_MB=64",
		"SANDLOT_POOL_SIZE=1"}
	if isLikeAMac(t) {
		settings = settings[2:] // sandboxes share no folder of a Mac: see noFolders
	}
	s := start(t, settings...)
	anns := s.token("ann")
	ann, bob := s.connect(older, anns, nil), s.connect(older, s.token("bob"), nil)
	a, b := ann.code("new", "x = 1").session(), bob.code("new", "x = 2").session()
	proven(t, ann, a)
	proven(t, bob, b)
	volume := func() map[string]any {
		return ann.call("get_volume_path", nil).Fields["volume_mappings"].([]any)[0].(map[string]any)
	}

	t.Run("full volume", func(t *testing.T) {
		if isLikeAMac(t) {
			return
		}
		reader := "Bearer " + s.token("eye", "--metrics")
		until(t, "a sandbox that can write the volume is in the pool", func() bool {
			_, _, text := s.request("GET", "/metrics", nil, "Authorization", reader)
			return strings.Contains(text, `sandlot_pool_ready{template="host"} 1`)
		})
		if r := ann.shell(a, "head -c 100000000 /dev/zero > /share/log; ls /share"); !strings.Contains(r.Text, "log") {
			t.Errorf("%q", r.All)
		}
		until(t, "the volume is full", func() bool { return volume()["full"] == true })
		if v := volume(); v["read_only"] != true || v["limit_mb"] != 16.0 {
			t.Errorf("%v", v)
		}
		refuses := func(session string) bool {
			r := bob.shell(session, "{ echo more > /share/bobs; } 2>&1")
			return strings.Contains(r.Text, "Read-only file system")
		}
		runs := s.docker == nil // whether sandboxes that run are concerned, too
		until(t, "what running sandboxes see", func() bool { return refuses(b) == runs })
		next := bob.code("new", "open('/share/new', 'w')").session()
		// one that was booting just then is sealed at the next look
		until(t, "a new sandbox cannot write it", func() bool {
			return strings.Contains(bob.shell(next, "touch /share/new 2>&1").Text, "Read-only file system")
		})
		// Each answers for its own workspace alone: what they write there has them
		// measured, and they live on.
		for id, c := range map[string]*client{a: ann, b: bob} {
			c.shell(id, "for i in 1 2 3; do head -c 6000000 /dev/urandom > /workspace/f; sync; sleep 0.5; done")
		}
		ann.want(a, "print(x)", "1")
		bob.want(b, "print(x)", "2")
		if !strings.Contains(s.log.String(), "a volume has reached its limit") ||
			strings.Contains(s.log.String(), "a sandbox reached its disk limit") {
			t.Errorf("the log says otherwise:\n%s", s.log)
		}
		if err := os.Remove(filepath.Join(shared, "log")); err != nil {
			t.Fatal(err)
		}
		until(t, "the volume can be written again", func() bool {
			return volume()["full"] == false && !refuses(b)
		})
		later := bob.code("new", "1").session()
		if refuses(later) || refuses(next) == runs {
			t.Errorf("refused in a later sandbox: %t; in the one that started while it was full: %t",
				refuses(later), refuses(next))
		}
	})

	t.Run("deep workspace", func(t *testing.T) {
		id := ann.code("new", `import os
os.chdir("/workspace"); os.mkdir("X")
for i in range(1500):
    os.mkdir("Y"); os.rename("X", "Y/" + "a" * 200); os.rename("Y", "X")
print(os.path.isdir("X"))`)
		if id.Text != "True" {
			t.Fatalf("%q", id.All)
		}
		workspaces := filepath.Join(s.State, "workspaces")
		folders := func() (n int) { // and not what is noted of volumes beside them
			all, _ := os.ReadDir(workspaces)
			for _, e := range all {
				if e.IsDir() {
					n++
				}
			}
			return n
		}
		before := folders()
		ann.call("stop_session", args{"session_id": id.session()})
		if after := folders(); after != before-1 {
			t.Errorf("%d workspaces, there were %d", after, before)
		}
		s.stop()
		s.launch()
		ann = s.connect(older, anns, nil)
		until(t, "what was removed is gone", func() bool {
			left, err := os.ReadDir(filepath.Join(workspaces, ".removed"))
			return err == nil && len(left) == 0
		})
		ann.want(a, "print(x)", "1")
	})

	t.Run("flavor", func(t *testing.T) {
		look := "awk '/^MemTotal/ {print $2}' /proc/meminfo; ls /sys/fs/cgroup" // and no limits in cgroup files
		unit, agents := 1024, 0
		if s.docker != nil { // /proc/meminfo is the machine's, and the kernel allows the agent 32 MB more
			look = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
			unit, agents = 1<<20, 32
		}
		if isLikeAMac(t) {
			agents += 24 // of `sandlot-agent connect`
		}
		for flavor, megabytes := range map[string]int{"small": 1024, "large": 4096} {
			r := ann.call("execute_command", args{"session_id": "new", "flavor": flavor, "command": look})
			if want := fmt.Sprint((megabytes + agents) * unit); strings.TrimSpace(r.Text) != want {
				t.Errorf("%s: %q, want %s", flavor, r.Text, want)
			}
		}
	})
}
