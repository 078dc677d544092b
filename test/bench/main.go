// Bench measures Sandlot on this machine, and writes a report in Markdown. It compares with other programs in
// the same run. It checks all answers, and ends at the first wrong one. It needs the programs of `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

// topics are the sections of the report, in its order.
var topics = []struct {
	name string
	run  func(*bench) (section, error)
}{
	{"warm", warm},
	{"new", fresh},
	{"boot", boot},
	{"output", output},
	{"work", work},
	{"memory", memory},
	{"files", files},
	{"clients", clients},
	{"sleep", sleep},
	{"restart", restart},
	{"takeover", takeover},
	{"neighbours", neighbours},
	{"network", network},
	{"hub", hub},
	{"code", code},
	{"tokens", tokenCosts},
	{"docker", dockerRuntime},
	{"images", images},
	{"people", people},
}

// bench is one run.
type bench struct {
	ctx   context.Context
	bin   string // folder with the programs
	tools string
	quick bool
}

// pick returns how much to measure: few with -quick, else full.
func pick[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	out := flag.String("out", "docs/benchmarks.md", "the `file` to write")
	tools := flag.String("tools", ".tools",
		"the `folder` of make tools: its Python client is measured too, if it is there")
	quick := flag.Bool("quick", false, "take few samples, to try this program")
	only := flag.String("only", "",
		"measure only the topics whose names match this `regexp`, and leave the file's other sections")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, tools: *tools, quick: *quick}
	if b.bin, err = filepath.Abs("bin"); err != nil {
		return err
	}
	for _, p := range []string{"sandlot", "sandlot-agent", "sandlot-runsc"} {
		if _, err := os.Stat(filepath.Join(b.bin, p)); err != nil {
			return fmt.Errorf("%w; run `make build`", err)
		}
	}
	var before []byte
	if *only != "" {
		before, err = os.ReadFile(*out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	preface := b.preface()
	apart := ""
	if len(before) > 0 {
		preface, apart = "", b.apart()
	}
	parts, missed := b.measure(match, apart)
	if len(parts) == 0 {
		return errors.Join(missed, fmt.Errorf("nothing was measured of the topics that match %s", match))
	}
	if missed != nil && len(before) == 0 {
		parts = append(parts, section{title: "Not measured", method: missed.Error()}.markdown())
	}
	report := merge(string(before), append([]string{preface}, parts...))
	return errors.Join(missed, os.WriteFile(*out, []byte(report), 0o644))
}

// measure runs the topics one after the other, prints each section when it is measured, and returns all sections, and
// why others could not be measured.
func (b *bench) measure(match *regexp.Regexp, note string) (parts []string, missed error) {
	for _, t := range topics {
		if !match.MatchString(t.name) || b.ctx.Err() != nil {
			continue
		}
		fmt.Fprintln(os.Stderr, "bench: measuring", t.name)
		s, err := t.run(b)
		if err != nil {
			missed = errors.Join(missed, fmt.Errorf("%s: %w", t.name, err))
			fmt.Fprintf(os.Stderr, "bench: %s could not be measured: %v\n", t.name, err)
			continue
		}
		if note != "" {
			s.notes = append(s.notes, note)
		}
		part := s.markdown()
		fmt.Println(part)
		parts = append(parts, part)
	}
	return parts, errors.Join(missed, b.ctx.Err())
}
