package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// preface returns the beginning of the report: what was measured, on which machine, and how.
func (b *bench) preface() string {
	few := ""
	if b.quick {
		few = "\n**A trial with `-quick`: too few samples to mean anything.**\n"
	}
	return fmt.Sprintf(`# Benchmarks

Written by `+"`make bench`"+`, which runs [test/bench](../test/bench). Do not edit.
%s
%s

Server, sandboxes and clients share this machine, so a client's own work is in the numbers. Servers have their default settings, and a new state folder in %s, except where a topic says otherwise. Where two things are compared, their samples are taken alternately in the same run. Every answer is checked, and a wrong one ends the run. Percentiles are by the nearest rank: of fewer than 100 samples P99 is the longest.
`, few, b.machine().markdown(), "`"+os.TempDir()+"`")
}

func (b *bench) machine() table {
	return table{head: []string{"machine", ""}, rows: [][]string{
		{"date", time.Now().UTC().Format("2006-01-02 15:04 MST")},
		{"Sandlot", said("git", "describe", "--tags", "--always", "--dirty")},
		{"processor", fmt.Sprintf("%s, %d cores", processor(), runtime.NumCPU())},
		{"memory", fmt.Sprintf("%.1f GiB", float64(ram())/(1<<30))},
		{"kernel", said("uname", "-sr")},
		{"Go", runtime.Version()},
		{"load before the run", load()},
		{"wake-ups", b.wakeUp()},
		{"user", map[bool]string{true: "root", false: "not root"}[os.Getuid() == 0]},
	}}
}

// apart returns the note for a section that was measured at another time than the others.
func (b *bench) apart() string {
	return fmt.Sprintf("*Measured apart from the other sections: %s, Sandlot %s, %s, %d cores, load before the run "+
		"%s.*",
		time.Now().UTC().Format("2006-01-02 15:04 MST"), said("git", "describe", "--tags", "--always", "--dirty"),
		processor(), runtime.NumCPU(), load())
}

// said returns what a program prints, or "unknown".
func said(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for l := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// wakeUp returns what sandlot doctor reports about idle processors.
func (b *bench) wakeUp() string {
	dir, err := tempDir()
	if err != nil {
		return "unknown"
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(b.ctx, filepath.Join(b.bin, "sandlot"), "doctor")
	cmd.Env = append(os.Environ(), "SANDLOT_STATE_DIR="+dir)
	out, _ := cmd.Output() // another check of the doctor may fail
	for line := range strings.Lines(string(out)) {
		if _, text, ok := strings.Cut(line, "wake-ups"); ok {
			text, _, _ = strings.Cut(strings.TrimSpace(text), ", which")
			return text + " (`sandlot doctor`)"
		}
	}
	return "unknown"
}

func ram() uint64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 0
	}
	return i.Totalram * uint64(i.Unit)
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(text))[:1], "")
}

// cpu returns how long all cores together have been busy, and how long they have run.
type cpu struct{ busy, all float64 }

func cpuNow() cpu {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	var c cpu
	for i, f := range strings.Fields(strings.TrimPrefix(first, "cpu")) {
		var n float64
		fmt.Sscan(f, &n)
		if i >= 8 { // the time of guests is a part of the user time
			break
		}
		c.all += n
		if i != 3 && i != 4 { // idle, waiting for a disk
			c.busy += n
		}
	}
	return c
}

// since returns how busy the cores were since then, in percent.
func (c cpu) since(then cpu) float64 {
	if c.all == then.all {
		return 0
	}
	return 100 * (c.busy - then.busy) / (c.all - then.all)
}
