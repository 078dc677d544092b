package agent

import (
	"testing"

	"sandlot/internal/image"
)

// TestThreads: programs are told how many threads to start, unless the template says it itself.
func TestThreads(t *testing.T) {
	template := &image.Template{Env: map[string]string{"GOMAXPROCS": "9", "MAKEFLAGS": "-s"}}
	for cpus, want := range map[float64]string{0: "", 0.5: "1", 1: "1", 1.5: "2", 16: "16"} {
		env := variables(template, cpus)
		if env["OMP_NUM_THREADS"] != want || env["LOKY_MAX_CPU_COUNT"] != want || env["GOMAXPROCS"] != "9" ||
			env["MAKEFLAGS"] != "-s" {
			t.Errorf("%g: %v", cpus, env)
		}
		if threads, want := env["UV_THREADPOOL_SIZE"], map[float64]string{0: "", 16: "16"}; cpus > 4 && threads != want[cpus] ||
			cpus > 0 && cpus < 4 && threads != "4" {
			t.Errorf("%g: %s", cpus, threads)
		}
	}
}
