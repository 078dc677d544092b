package test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sandlot/internal/image/imagetest"
	"sandlot/test/tasks"
)

// TestTasks does the tasks of an agent's working day, each in a session of its own and without a needless error.
func TestTasks(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=", "SANDLOT_PACKAGES_NODE=", "SANDLOT_PACKAGES_APT=true",
		"SANDLOT_POOL_SIZE=1")...)
	awaitReady(t, s)
	doTasks(t, s, nil)
}

// TestTasksUnprivileged does them on a server that is not root.
func TestTasksUnprivileged(t *testing.T) {
	t.Parallel()
	s := startUnprivileged(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=", "SANDLOT_PACKAGES_NODE=",
		"SANDLOT_PACKAGES_APT=true", "SANDLOT_POOL_SIZE=1")...)
	awaitReady(t, s)
	doTasks(t, s, nil)
}

// awaitReady waits until new sandboxes of the template host have all ready packages.
func awaitReady(t *testing.T, s *server) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); strings.Count(s.log.String(), "the ready packages are there") < 3; {
		time.Sleep(100 * time.Millisecond)
		if time.Now().After(end) || strings.Contains(s.log.String(), "the ready packages were not made") {
			t.Fatalf("the ready packages are not made:\n%s", s.log.String())
		}
	}
	call := tasks.CallerOf(s.connect(older, "", nil).ClientSession)
	until(t, "a new sandbox has the ready packages", func() bool {
		look := func(d *tasks.Desk) { d.Shell("python3 -c 'import pandas' && test -s /var/lib/dpkg/status", "") }
		return tasks.Run(t.Context(), tasks.Task{Do: look}, call).Err == nil
	})
}

// imageOfDay is the name of an image with Debian and this machine's Node, as Debian's is too old for vitest.
const imageOfDay = "sandlot-test/day:1"

// dayOfImage is a template of that image, with what the tasks need and the template host has ready.
const dayOfImage = `
default_template: day
network: {allow: [MIRRORS], allow_private: [PRIVATE]}
templates:
  day:
    image: "` + imageOfDay + `"
    packages:
      apt: [golang-go, xz-utils]
      npm: [typescript@5.9.3, vitest]
      pip: [pandas, matplotlib, scikit-learn, openpyxl, python-docx, python-pptx, pypdf, reportlab, pillow, duckdb,
        pyarrow, httpx, pytest, fastapi, uvicorn, uv]
    pool: 1
`

// TestTasksImage does the tasks in sandboxes of gVisor that are made of an image.
func TestTasksImage(t *testing.T) {
	t.Parallel()
	archive := imagetest.BaseArchive(t)
	s := start(t, registries()...)
	if out, errs, code := s.cli("image", "import", withNode(t, archive), imageOfDay); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	doTasksOfImage(t, s, archive, nil)
}

// notInContainers are the tasks that containers on the machine's kernel cannot do, and why.
var notInContainers = map[int]string{
	7: "apt-get needs capabilities", 11: "apt-get needs capabilities", 31: "apt-get needs capabilities",
	34: "root cannot become others", 25: "containers have no snapshots", 29: "programs see the machine's memory",
}

// TestTasksDocker does them in containers.
func TestTasksDocker(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	archive := imagetest.BaseArchive(t)
	load := exec.Command("docker", "import", withNode(t, archive), imageOfDay)
	load.Env = append(os.Environ(), "DOCKER_HOST="+d.Host)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v %s", err, out)
	}
	t.Run("day", func(t *testing.T) { doTasksOfImage(t, start(t, registries()...), archive, notInContainers) })
	gone(t, d)
}

func doTasksOfImage(t *testing.T, s *server, archive string, without map[int]string) {
	t.Helper()
	s.settings(withMirrors(t, dayOfImage, archive))
	s.restart()
	for end := time.Now().Add(12 * time.Minute); s.templates()["day"]["usable"] != true; time.Sleep(time.Second) {
		if now := s.templates()["day"]; now["state"] == "failed" || time.Now().After(end) {
			t.Fatalf("the template: %v", now)
		}
	}
	c := s.connect(older, "", nil)
	id := c.shell("new", "true").session()
	proven(t, c, id)
	for _, info := range c.call("get_sessions", args{"session_id": id}).Fields["sessions"].([]any) {
		if got := info.(map[string]any)["template"]; got != "day" {
			t.Fatalf("sessions have the template %v", got)
		}
	}
	c.call("stop_session", args{"session_id": id})
	doTasks(t, s, without)
}

// doTasks does all tasks, but those that a map names with the reason.
func doTasks(t *testing.T, s *server, without map[int]string) {
	call := tasks.CallerOf(s.connect(older, "", nil).ClientSession)
	for _, task := range tasks.All {
		if without[task.Number] != "" {
			continue
		}
		t.Run(fmt.Sprint(task.Number), func(t *testing.T) {
			began := time.Now()
			d := tasks.Run(t.Context(), task, call)
			t.Logf("%s: %d calls, %d tokens, %v", task.Name, d.Calls, d.Tokens, time.Since(began).Round(time.Second/10))
			if d.Err != nil {
				t.Errorf("%s: %v", task.Name, d.Err)
			}
		})
	}
}
