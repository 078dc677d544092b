// Bench measures Sandlot on this machine, and writes a report: a page of figures, one of methods, and the samples. It
// compares with other programs in the same run. It checks all answers, and ends a topic at the first wrong one. It needs the programs of `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
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
	{"browser", browser},
	{"console", console},
	{"day", day},
	{"people", people},
	{"peers", peers},
}

// bench is one run.
type bench struct {
	ctx    context.Context
	bin    string // folder with the programs
	before string // folder with those of an earlier version; empty: there is none
	tools  string
	quick  bool
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
	if err := start(ctx); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// report is where the figures of record are, trials where those of other runs are.
const report, trials = "docs/benchmarks.md", "bin/benchmarks.md"

// options are the command line.
type options struct {
	out, tools, only, before string
	quick, force             bool
	wait                     time.Duration
}

func (o *options) parse(args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "", "the `file` to write, with .json and -methods.md beside it (default "+report+
		"; with -only, -quick or -force "+trials+")")
	flags.StringVar(&o.tools, "tools", ".tools",
		"the `folder` of make tools: its Python client is measured too, if it is there; peers are installed into it")
	flags.BoolVar(&o.quick, "quick", false, "take few samples, to try this program")
	flags.BoolVar(&o.force, "force", false, "measure on a busy machine too; the report says so")
	flags.DurationVar(&o.wait, "wait", 0, "wait for `so long` at most until the machine is idle")
	flags.StringVar(&o.before, "before", "", "the `folder` with the programs of an earlier version, whose working day "+
		"stands beside this one's")
	flags.StringVar(&o.only, "only", "", "measure only the topics whose names match this `regexp`, and leave the other "+
		"sections of the file; each section says of which run it is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.out == "" {
		o.out = report
		if o.only != "" || o.quick || o.force {
			o.out = trials
		}
	}
	if !strings.HasSuffix(o.out, ".md") {
		return fmt.Errorf("-out %s: the name of the file has to end with .md", o.out)
	}
	return nil
}

func start(ctx context.Context) error {
	var o options
	if err := o.parse(os.Args[1:]); err != nil {
		return err
	}
	match, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, quick: o.quick, before: o.before}
	if b.tools, err = filepath.Abs(o.tools); err != nil {
		return err
	}
	if b.bin, err = filepath.Abs("bin"); err != nil {
		return err
	}
	for _, p := range []string{"sandlot", "sandlot-agent", "sandlot-runsc"} {
		if _, err := os.Stat(filepath.Join(b.bin, p)); err != nil {
			return fmt.Errorf("%w; run `make build`", err)
		}
	}
	if !o.force {
		if err := awaitIdle(ctx, o.wait); err != nil {
			return err
		}
	}
	var before document
	if o.only != "" {
		if before, err = readDocument(o.out); err != nil {
			return err
		}
	}
	of := b.thisRun()
	if err := touch(); err != nil {
		return fmt.Errorf("touch the machine's memory: %w", err)
	}
	found, missed := b.measure(match, of)
	if len(found.Sections) == 0 {
		return errors.Join(missed, fmt.Errorf("nothing was measured of the topics that match %s", match))
	}
	if ctx.Err() != nil {
		return errors.Join(missed, errors.New("the run was interrupted, and no report was written"))
	}
	if now := commit(); now != of.machine("Sandlot") {
		return errors.Join(missed, fmt.Errorf("the run began with %s and ended with %s, and no report was written: "+
			"leave the repository alone meanwhile", of.machine("Sandlot"), now))
	}
	return errors.Join(missed, before.merge(found).write(o.out))
}

// measure runs the topics one after the other, prints each section when it is measured, and returns all sections, and
// why others could not be measured.
func (b *bench) measure(match *regexp.Regexp, of run) (found document, failed error) {
	found.Runs = []run{of}
	for _, t := range topics {
		if !match.MatchString(t.name) || b.ctx.Err() != nil {
			continue
		}
		fmt.Fprintln(os.Stderr, "bench: measuring", t.name)
		s, err := t.run(b)
		if err != nil {
			found.Missed = append(found.Missed, missed{t.name, clip(err.Error())})
			failed = errors.Join(failed, fmt.Errorf("%s: %w", t.name, err))
			fmt.Fprintf(os.Stderr, "bench: %s could not be measured: %v\n", t.name, err)
			continue
		}
		fmt.Println(s.markdown())
		found.Sections = append(found.Sections,
			chapter{Topic: t.name, Run: of.Name, Title: s.title, Method: s.method, Tables: s.tables, Notes: s.notes})
	}
	return found, errors.Join(failed, b.ctx.Err())
}

// clip shortens why a topic could not be measured: a program's trace may have thousands of lines.
func clip(why string) string {
	const most = 300
	if r := []rune(why); len(r) > most {
		return string(r[:most]) + " …"
	}
	return why
}
