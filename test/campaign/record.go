package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// recordDir is the folder of the record: `times` below SANDLOT_TEST_TOOLS, or below .tools.
func recordDir() string {
	tools := os.Getenv("SANDLOT_TEST_TOOLS")
	if tools == "" {
		tools = ".tools"
	}
	return filepath.Join(tools, "times")
}

// record is a folder with the times of stages (stages.jsonl) and the events of their tests (NAME.json).
type record struct{ dir string }

// stageTimes are the times of one stage in seconds. Work is that of all processors of the machine, whoever did it:
// sandboxes and daemons are no children of the tests.
type stageTimes struct {
	Name         string
	Start        time.Time
	Wall         float64
	User, System float64
	Idle         float64
	Failed       bool
}

// begin removes what was recorded before.
func (r *record) begin() error {
	return errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755))
}

// stage runs a command with this program's input and output, and records its times.
func (r *record) stage(name string, cmd *exec.Cmd) error {
	if cmd.Stdout == nil {
		cmd.Stdout = os.Stdout
	}
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	start, before := time.Now(), processors()
	failure := cmd.Run()
	after := processors()
	took := stageTimes{Name: name, Start: start, Wall: time.Since(start).Seconds(), Failed: failure != nil,
		User: after.user - before.user, System: after.system - before.system, Idle: after.idle - before.idle}
	if failure != nil {
		failure = fmt.Errorf("%s: %w", name, failure)
	}
	return errors.Join(failure, r.add(took))
}

func (r *record) add(s stageTimes) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(r.dir, "stages.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// gotestsum runs a failed test once more, alone, and prints both results (docs/decisions/0084-campaign.md).
var gotestsum = []string{"run", "gotest.tools/gotestsum@v1.13.0", "--rerun-fails=1", "--rerun-fails-max-failures=6",
	"--rerun-fails-run-root-test", "--rerun-fails-abort-on-data-race"}

// sqliteUnwatched compiles SQLite, which is C in Go's words, without the race detector: it takes eight times as long
// with it, and has no goroutines of its own.
const sqliteUnwatched = "-gcflags=modernc.org/...=-race=false"

// tests runs gotestsum with arguments and more variables of the environment. The race detector needs a C compiler.
func (r *record) tests(name string, env []string, args ...string) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	env = append(os.Environ(), env...)
	if slices.Contains(args, "-race") {
		args = append(args, sqliteUnwatched)
		env = append(env, "CGO_ENABLED=1")
	}
	cmd := exec.Command("go", slices.Concat(gotestsum, []string{"--jsonfile", filepath.Join(r.dir, name+".json")}, args)...)
	cmd.Env = env
	return r.stage(name, cmd)
}

// times are seconds of all processors since the machine's start.
type times struct{ user, system, idle float64 }

// processors reads them from /proc/stat, whose unit is a hundredth of a second.
func processors() (t times) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t // not Linux
	}
	var user, nice, system, idle, wait, irq, softirq float64
	fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait, &irq, &softirq)
	return times{user: (user + nice) / 100, system: (system + irq + softirq) / 100, idle: (idle + wait) / 100}
}

func (r *record) stages() (all []stageTimes, err error) {
	text, err := os.ReadFile(filepath.Join(r.dir, "stages.jsonl"))
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var s stageTimes
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("stages.jsonl: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// testTime is how long one test took, in seconds, and how often it ran and failed.
type testTime struct {
	Stage, Package, Test string
	Seconds              float64
	Failed               bool // in one of its attempts
	Passed               bool
}

// owner is the part of a test's name that stands in the report: the test, or the one that a group of tests runs on
// another daemon (TestDocker/each/Code).
func owner(test string) string {
	parts := strings.Split(test, "/")
	if len(parts) > 2 && parts[1] == "each" {
		return strings.Join(parts[:3], "/")
	}
	return parts[0]
}

// testTimes reads the events of all stages.
func (r *record) testTimes() ([]*testTime, error) {
	files, err := filepath.Glob(filepath.Join(r.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []*testTime
	for _, file := range files {
		stage, err := readEvents(file)
		if err != nil {
			return nil, err
		}
		all = append(all, stage...)
	}
	return all, nil
}

func readEvents(file string) ([]*testTime, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stage := strings.TrimSuffix(filepath.Base(file), ".json")
	byName := map[string]*testTime{}
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		var e struct {
			Action, Package, Test string
			Elapsed               float64
		}
		if json.Unmarshal(line, &e) == nil && e.Test != "" && owner(e.Test) == e.Test &&
			(e.Action == "pass" || e.Action == "fail") {
			key := e.Package + " " + e.Test
			if byName[key] == nil {
				byName[key] = &testTime{Stage: stage, Package: strings.TrimPrefix(e.Package, "sandlot/"), Test: e.Test}
			}
			t := byName[key]
			t.Seconds += e.Elapsed
			t.Failed = t.Failed || e.Action == "fail"
			t.Passed = t.Passed || e.Action == "pass"
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	var all []*testTime
	for _, t := range byName {
		all = append(all, t)
	}
	return all, nil
}

// slowest is how many tests the report names.
const slowest = 20

// report prints what was recorded.
func (r *record) report(w io.Writer) error {
	stages, err := r.stages()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%-12s %8s %8s %8s %8s   seconds; user, system and idle of all processors\n", "stage", "wall", "user",
		"system", "idle")
	var sum stageTimes
	for _, s := range stages {
		fmt.Fprintf(w, "%-12s %8.0f %8.0f %8.0f %8.0f%s\n", s.Name, s.Wall, s.User, s.System, s.Idle,
			map[bool]string{true: "   FAILED"}[s.Failed])
		sum.Wall, sum.User, sum.System, sum.Idle = sum.Wall+s.Wall, sum.User+s.User, sum.System+s.System, sum.Idle+s.Idle
	}
	fmt.Fprintf(w, "%-12s %8.0f %8.0f %8.0f %8.0f\n", "all", sum.Wall, sum.User, sum.System, sum.Idle)
	tests, err := r.testTimes()
	if err != nil {
		return err
	}
	slices.SortFunc(tests, func(a, b *testTime) int {
		if a.Seconds != b.Seconds {
			return int(1000 * (b.Seconds - a.Seconds))
		}
		return strings.Compare(a.Test, b.Test)
	})
	fmt.Fprintf(w, "\nthe slowest tests, in seconds (most wait beside others):\n")
	for _, t := range tests[:min(slowest, len(tests))] {
		fmt.Fprintf(w, "%7.1f  %s %s\n", t.Seconds, t.Package, t.Test)
	}
	again := slices.DeleteFunc(tests, func(t *testTime) bool { return !t.Failed || !t.Passed })
	if len(again) == 0 {
		fmt.Fprintf(w, "\nno test failed at its first attempt and passed at its second\n")
		return nil
	}
	fmt.Fprintf(w, "\nFAILED AT THE FIRST ATTEMPT, passed at the second (find out why, and count it in CONTRIBUTING.md):\n")
	for _, t := range again {
		fmt.Fprintf(w, "         %s %s\n", t.Package, t.Test)
	}
	return nil
}
