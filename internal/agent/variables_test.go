package agent

import (
	"runtime"
	"strconv"
	"testing"

	"sandlot/internal/image"
)

// TestThreads: programs are told how many threads to start, unless the template says it itself.
func TestThreads(t *testing.T) {
	template := &image.Template{Env: map[string]string{"GOMAXPROCS": "9", "MAKEFLAGS": "-s"}}
	all := runtime.NumCPU()
	for cpus, want := range map[float64]string{0: "", 0.5: "1", 1: "1", 1.5: strconv.Itoa(min(2, all)),
		float64(all + 1): strconv.Itoa(all)} {
		env := variables(template, cpus)
		if env["OMP_NUM_THREADS"] != want || env["LOKY_MAX_CPU_COUNT"] != want || env["GOMAXPROCS"] != "9" ||
			env["MAKEFLAGS"] != "-s" {
			t.Errorf("%g: %v", cpus, env)
		}
		n, _ := strconv.Atoi(want)
		if threads := env["UV_THREADPOOL_SIZE"]; want != "" && threads != strconv.Itoa(max(4, n)) {
			t.Errorf("%g: %s", cpus, threads)
		}
	}
}
