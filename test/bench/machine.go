package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// thisRun describes the run that begins.
func (b *bench) thisRun() run {
	r := run{Name: time.Now().UTC().Format("2006-01-02 15:04:05 MST"), Machine: [][2]string{
		{"Sandlot", commit()},
		{"processor", fmt.Sprintf("%s, %d cores", processor(), runtime.NumCPU())},
		{"memory", fmt.Sprintf("%.1f GiB", float64(ram())/(1<<30))},
		{"kernel", said("uname", "-sr")},
		{"Go", runtime.Version()},
		{"load before the run", fmt.Sprintf("%.2f", load())},
		{"wake-ups", b.wakeUp()},
		{"user", map[bool]string{true: "root", false: "not root"}[os.Getuid() == 0]},
	}}
	if b.quick {
		r.Doubts = append(r.Doubts, "A trial with `-quick`: too few samples to mean anything.")
	}
	if load() > mostLoad {
		r.Doubts = append(r.Doubts, fmt.Sprintf("The machine was busy when the run began (load average %.2f).", load()))
	}
	return r
}

// mostLoad is the load average above which figures are not worth a report.
const mostLoad = 1.0

// awaitIdle waits until the machine's load average is at most mostLoad, for so long at most.
func awaitIdle(ctx context.Context, most time.Duration) error {
	for end := time.Now().Add(most); load() > mostLoad; {
		if !time.Now().Before(end) {
			return fmt.Errorf("the machine's load average is %.2f, and figures are good only up to %.2f: end what "+
				"else runs, or wait (-wait 5m does); or measure with -force, into a report of trials", load(), mostLoad)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(5*time.Second, time.Until(end))):
		}
	}
	return nil
}

// commit names the commit that is measured.
func commit() string { return said("git", "describe", "--tags", "--always", "--dirty") }

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

// doctor returns what sandlot doctor prints.
func (b *bench) doctor(args ...string) string {
	dir, err := tempDir()
	if err != nil {
		return ""
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(b.ctx, filepath.Join(b.bin, "sandlot"), append([]string{"doctor"}, args...)...)
	cmd.Env = append(os.Environ(), "SANDLOT_STATE_DIR="+dir)
	out, _ := cmd.Output() // one of its checks may fail
	return string(out)
}

// wakeUp returns what sandlot doctor reports about idle processors.
func (b *bench) wakeUp() string {
	for line := range strings.Lines(b.doctor()) {
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

// load returns the machine's load average over one minute. Tests replace it.
var load = func() (n float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	fmt.Sscan(string(text), &n)
	return n
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
