package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// megabyte is what throughput is measured in.
const megabyte = 1e6

// addition is what something adds to a call or a request: one benchmark of the packages against another.
type addition struct {
	what    string
	pkg     string
	with    string // a benchmark's name
	without string // empty: the benchmark measures what is added
	most    time.Duration
}

var additions = []addition{
	{"100 rules about the operation, to a call", "hub", "CallWithRules/100", "CallWithRules/0", 20 * time.Microsecond},
	{"an event that is stored, to a call", "audit", "PublishStored/stored", "PublishStored/memory",
		30 * time.Microsecond},
	{"an event that is stored, in the background", "audit", "Store", "", 30 * time.Microsecond},
	{"a bound secret, to a request over HTTP/1.1", "egress/bound", "Request/HTTP1/bound", "Request/HTTP1/direct",
		time.Millisecond},
	{"a bound secret, to a request over HTTP/2", "egress/bound", "Request/HTTP2/bound", "Request/HTTP2/direct",
		time.Millisecond},
	{"a bound secret, to a new connection and a request over HTTP/1.1", "egress/bound", "Connection/HTTP1/bound",
		"Connection/HTTP1/direct", time.Millisecond},
	{"a bound secret, to a new connection and a request over HTTP/2", "egress/bound", "Connection/HTTP2/bound",
		"Connection/HTTP2/direct", time.Millisecond},
}

// streams are the benchmarks of throughput, each with /bound and /direct.
var streams = []struct{ what, name string }{
	{"a download over HTTP/1.1", "Download/HTTP1"}, {"a download over HTTP/2", "Download/HTTP2"},
	{"an upload over HTTP/1.1", "Upload/HTTP1"}, {"an upload over HTTP/2", "Upload/HTTP2"},
}

const leastRate = 100 * megabyte // bytes per second of a request with a bound secret

// people measures what rules, stored events and bound secrets cost.
func people(b *bench) (section, error) {
	sec := section{title: "Rules, events and bound secrets",
		method: "What each adds, by the benchmarks of the packages (`go test -bench`), in turns: with it and without " +
			"it, in the server's process. A bound secret's requests go from a client through the part of the broker " +
			"that ends TLS to a server on the loopback; without it, they go to that server itself. The sandbox's own " +
			"network is in *Network*."}
	found := map[string]*measurements{}
	for range pick(b, 7, 1) {
		for _, pkg := range []string{"hub", "audit", "egress/bound"} {
			if err := b.goBenchmarks(pkg, found); err != nil {
				return sec, err
			}
		}
	}
	t := timings("adds")
	for _, a := range additions {
		with, without := found[a.pkg+" "+a.with], found[a.pkg+" "+a.without]
		if with == nil || a.without != "" && without == nil {
			return sec, fmt.Errorf("there is no benchmark %s or %s in %s", a.with, a.without, a.pkg)
		}
		more := slices.Clone(with.took)
		for i := range more {
			if without != nil {
				more[i] -= without.took[i]
			}
		}
		t.add(a.what, more, more.against(goal{50, a.most}))
	}
	rates := table{Head: []string{"MB/s, median of " + fmt.Sprint(len(found["egress/bound Download/HTTP1/bound"].rate)),
		"with a bound secret", "without", "goal"}}
	for _, s := range streams {
		with, without := found["egress/bound "+s.name+"/bound"], found["egress/bound "+s.name+"/direct"]
		if with == nil || without == nil {
			return sec, fmt.Errorf("there is no benchmark %s", s.name)
		}
		rates.keepIn("bytes/s", s.what+", with a bound secret", with.rate)
		rates.keepIn("bytes/s", s.what+", without", without.rate)
		rates.Rows = append(rates.Rows, []string{s.what, perSecond(with.rate), perSecond(without.rate),
			verdict("≥ 100", median(with.rate) >= leastRate)})
	}
	sec.tables = []table{t, rates}
	return sec, nil
}

// measurements are the results of one Go benchmark.
type measurements struct {
	took samples
	rate []float64 // bytes per second
}

// A line such as "BenchmarkDownload/HTTP1/bound-2   5   67941782 ns/op   987.74 MB/s".
var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op(?:\s+([0-9.]+) MB/s)?`)

// goBenchmarks runs the benchmarks of a package once, and adds their results by the package and the name.
func (b *bench) goBenchmarks(pkg string, to map[string]*measurements) error {
	cmd := exec.CommandContext(b.ctx, "go", "test", "-vet=off", "-run", "^$", "-bench", ".", "-benchtime",
		pick(b, "300ms", "1ms"), "./internal/"+pkg)
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the benchmarks of %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	for _, m := range benchmarkLine.FindAllStringSubmatch(string(out), -1) {
		key := pkg + " " + m[1]
		if to[key] == nil {
			to[key] = &measurements{}
		}
		took, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		to[key].took = append(to[key].took, time.Duration(math.Round(took)))
		if m[3] == "" {
			continue
		}
		rate, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return err
		}
		to[key].rate = append(to[key].rate, rate*megabyte)
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

func perSecond(rates []float64) string { return fmt.Sprintf("%.0f", median(rates)/megabyte) }
