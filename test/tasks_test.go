package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandlot/test/tasks"
)

// TestTasks does the tasks of an agent's working day, each in a session of its own and without a needless error.
func TestTasks(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=", "SANDLOT_PACKAGES_NODE=", "SANDLOT_PACKAGES_APT=true",
		"SANDLOT_POOL_SIZE=1")...)
	doTasks(t, s)
}

// TestTasksUnprivileged does them on a server that is not root.
func TestTasksUnprivileged(t *testing.T) {
	t.Parallel()
	doTasks(t, startUnprivileged(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=", "SANDLOT_PACKAGES_NODE=",
		"SANDLOT_PACKAGES_APT=true", "SANDLOT_POOL_SIZE=1")...))
}

func doTasks(t *testing.T, s *server) {
	for end := time.Now().Add(10 * time.Minute); strings.Count(s.log.String(), "the ready packages are there") < 3; {
		if time.Sleep(100 * time.Millisecond); time.Now().After(end) {
			t.Fatal("the ready packages are not made")
		}
	}
	c := s.connect(older, "", nil)
	call := tasks.CallerOf(c.ClientSession)
	until(t, "a new sandbox has the ready packages", func() bool {
		d := tasks.Run(t.Context(), tasks.Task{Do: func(d *tasks.Desk) { d.Shell("python3 -c 'import pandas' && test -s /var/lib/dpkg/status", "") }}, call)
		return d.Err == nil
	})
	for _, task := range tasks.All {
		t.Run(fmt.Sprint(task.Number), func(t *testing.T) {
			d := tasks.Run(t.Context(), task, call)
			t.Logf("%s: %d calls, %d tokens", task.Name, d.Calls, d.Tokens)
			if d.Err != nil {
				t.Errorf("%s: %v", task.Name, d.Err)
			}
		})
	}
}
