package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The reason why a peer is not there is the line that says it, without addresses and colours.
func TestReason(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"go install: exit status 1\ngo: module example.org/a: reading https://proxy.invalid/a/list 403 Forbidden\n\t" +
			"server response: This module version is not available.\n", "go: module example.org/a: reading … 403 Forbidden (This module version is not available.)"},
		{"go install: exit status 1\n/home/u/main.go:1:2: some/module@v1: reading https://proxy.invalid/x: 404 Not Found",
			"some/module@v1: reading … 404 Not Found"},
		{"python: exit status 1\n  raise KeyError(\n\x1b[31mpkg.AuthenticationException: API key is required\x1b[0m",
			"pkg.AuthenticationException: API key is required"},
		{"nothing to blame\nsecond line", "nothing to blame"},
		{"an error with a | in it", `an error with a \| in it`},
		{"an error: " + strings.Repeat("é", 400), "an error: " + strings.Repeat("é", 290) + "…"},
	} {
		if got := reason(errors.New(c.text)); got != c.want && !strings.HasSuffix(c.want, "…") {
			t.Errorf("of %q the reason is %q, want %q", c.text, got, c.want)
		} else if n := len([]rune(got)); n > 301 {
			t.Errorf("a reason of %d characters", n)
		}
	}
}

// A table says where a peer is ahead, for times, sizes and rates.
func TestBesideOurs(t *testing.T) {
	ours := samples{10 * time.Millisecond, 20 * time.Millisecond}
	theirs := samples{5 * time.Millisecond, 40 * time.Millisecond}
	if got, want := besideOurs(theirs, ours), "P50 **ahead** (0.50 × Sandlot's), P99 behind (2.00 × Sandlot's)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := besideOurs(ours, ours); got != "P50 equal, P99 equal" {
		t.Errorf("equal samples: %q", got)
	}
	if got, want := besideOne(200, 100, true), "**ahead** (2.00 × Sandlot's)"; got != want {
		t.Errorf("a higher rate: %q, want %q", got, want)
	}
	if got, want := besideOne(50, 100, true), "behind (0.50 × Sandlot's)"; got != want {
		t.Errorf("a lower rate: %q, want %q", got, want)
	}
}

// Every table of peers has a row for each, and the column that says who is ahead, also for one that never came back.
func TestHubTables(t *testing.T) {
	took := func(ms int) samples { return samples{time.Duration(ms) * time.Millisecond} }
	gate := func(name string, ms int, direct, ours *tollgate) *tollgate {
		return &tollgate{name: name, direct: direct, ours: ours, took: took(ms), list: took(ms), ready: took(ms),
			back: took(ms), sizes: []float64{float64(ms) * megabyte}}
	}
	direct := gate("directly", 1, nil, nil)
	direct.sizes = nil
	ours := gate("Sandlot", 3, direct, nil)
	fast, dead := gate("fast", 2, direct, ours), gate("dead", 6, direct, ours)
	dead.back, dead.lost = nil, 4
	text := ""
	for _, table := range hubTables([]*tollgate{direct, ours, fast, dead}) {
		for _, row := range table.Rows {
			if len(row) > len(table.Head) {
				t.Errorf("a row of %d columns in a table of %d: %q", len(row), len(table.Head), row)
			}
		}
		text += table.markdown() + "\n"
	}
	for _, want := range []string{
		"| fast |  | 1 | 2.00 ms | 2.00 ms | 2.00 ms | 1.00 ms | 1.00 ms | P50 **ahead** (0.67 × Sandlot's), P99 **ahead**",
		"| dead | 4 | never | never | never | behind (not within 20s) |",
		"| fast | 2.0 | **ahead** (0.67 × Sandlot's) |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables have no %q:\n%s", want, text)
		}
	}
}

// A peer's memory is compared with that of a session of Sandlot, whichever client its calls are compared with.
func TestPythonTables(t *testing.T) {
	one := samples{time.Millisecond}
	bare := &contestant{name: "Sandlot, bare call", cold: one, warm: one, out: one, sizes: []float64{30e6}}
	client := &contestant{name: "Sandlot, a client", cold: one, warm: one, out: one}
	peer := &contestant{name: "peer", ours: client, cold: one, warm: one, out: one, sizes: []float64{15e6}}
	text := ""
	for _, table := range pythonTables([]*contestant{bare, client, peer}, 4) {
		text += table.markdown() + "\n"
	}
	if want := "| peer | 1 | 15.0 | **ahead** (0.50 × Sandlot's) |"; !strings.Contains(text, want) {
		t.Errorf("the tables have no %q:\n%s", want, text)
	}
}

// A peer is installed once for each list of versions, and again after a failure.
func TestOnce(t *testing.T) {
	p := &peerBench{bench: &bench{ctx: t.Context()}, dir: filepath.Join(t.TempDir(), "peers")}
	count := 0
	for _, step := range []struct {
		versions string
		err      error
		want     int
	}{{"a==1", errors.New("no network"), 1}, {"a==1", nil, 2}, {"a==1", nil, 2}, {"a==2", nil, 3}} {
		err := p.once("a", step.versions, func() error { count++; return step.err })
		if !errors.Is(err, step.err) || count != step.want {
			t.Errorf("%s: installed %d times (%v), want %d", step.versions, count, err, step.want)
		}
	}
}

func TestForeignImport(t *testing.T) {
	venv := t.TempDir()
	if err := foreignImport(venv); err == nil {
		t.Error("a package that is not there")
	}
	folder := filepath.Join(venv, "lib", "python3.11", "site-packages", "mcp_run_python", "deno")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, foreign := range map[string]bool{`{"imports": {"a": "jsr:@std/cli@^1"}}`: true,
		`{"imports": {"a": "npm:zod@3"}}`: false} {
		if err := os.WriteFile(filepath.Join(folder, "deno.jsonc"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := foreignImport(venv); (err != nil) != foreign || foreign && !strings.Contains(err.Error(), "jsr:@std/cli") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A peer that fails is a row that says why, and the others are measured; Sandlot's own failure ends the topic.
func TestFailedPeer(t *testing.T) {
	p := &peerBench{bench: &bench{ctx: t.Context()}}
	ours := &contestant{name: "Sandlot"}
	theirs := &contestant{name: "other", ours: ours}
	if err := p.fail(theirs, "a start", errors.New("exit status 1\nbwrap: error")); err != nil || !theirs.failed {
		t.Errorf("a peer's failure: %v, failed %v", err, theirs.failed)
	}
	if err := p.fail(ours, "a start", errors.New("no")); err == nil {
		t.Error("Sandlot's failure is no error")
	}
	ours.cold = samples{time.Millisecond}
	for _, table := range pythonTables([]*contestant{ours, theirs}, 4)[1:] {
		if text := table.markdown(); strings.Contains(text, "other") {
			t.Errorf("a row of a peer without samples:\n%s", text)
		}
	}
	direct := &tollgate{name: "directly", took: samples{1}, list: samples{1}, ready: samples{1}}
	hub := &tollgate{name: "Sandlot", direct: direct, took: samples{1}, list: samples{1}, ready: samples{1}, back: samples{1}}
	lame := &tollgate{name: "lame", direct: direct, ours: hub}
	if err := p.failHub(lame, "its list", errors.New("timed out")); err != nil || !lame.failed {
		t.Errorf("a hub's failure: %v, failed %v", err, lame.failed)
	}
	if err := p.failHub(hub, "its list", errors.New("no")); err == nil {
		t.Error("a failure of Sandlot's hub is no error")
	}
	for _, table := range hubTables([]*tollgate{direct, hub, lame}) {
		if text := table.markdown(); strings.Contains(text, "lame") {
			t.Errorf("a row of a hub without samples:\n%s", text)
		}
	}
	if text := p.absent.markdown(); !strings.Contains(text, "| other: a start | bwrap: error |") ||
		!strings.Contains(text, "| lame: its list | timed out |") {
		t.Errorf("the reasons:\n%s", text)
	}
}
