// Measure tells how the code stands: the longest function, the widest struct, the
// largest package and so on, each with its bound and the name of the worst.
//
//	go run ./test/measure          the table; fails where a bound is broken
//	go run ./test/measure -write   brings exceptions.txt down to what is true now
//	go run ./test/measure -accept  writes what is true now, for code that moved: look at its diff
//	go run ./test/measure -list internal/hub   every place in a package that is over a bound
//
// Where a bound does not hold yet, exceptions.txt has what is over it, with its
// number. That list only gets shorter: what is larger than its number, or over a
// bound and not in the list, fails, and so does a line for something that holds.
//
// Code is every Go file but tests, generated ones, and packages for tests (below
// test/, or with a name that ends in "test"). Tests count for the lines over 120
// columns, in which a tab is four columns.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

const exceptionsFile = "test/measure/exceptions.txt"

func main() {
	write := flag.Bool("write", false, "lower and delete lines of "+exceptionsFile+"; nothing new or larger is written")
	accept := flag.Bool("accept", false, "write "+exceptionsFile+" as everything is now")
	list := flag.String("list", "", "list what is over a bound in this folder")
	flag.Parse()
	if err := run(os.Stdout, *write, *accept, *list); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, write, accept bool, list string) error {
	packages, err := load()
	if err != nil {
		return err
	}
	measures := measure(packages)
	if list != "" {
		for _, m := range measures {
			for _, f := range m.over() {
				if f.in(list) {
					fmt.Fprintf(out, "%s %s %d\n", m.key, f.name, f.value)
					for _, p := range f.places {
						fmt.Fprintln(out, "   ", p)
					}
				}
			}
		}
		return nil
	}
	data, err := os.ReadFile(exceptionsFile)
	if err != nil {
		return err
	}
	exceptions, err := parseExceptions(string(data))
	if err != nil {
		return err
	}
	if accept {
		exceptions = present(measures)
	}
	table(out, measures, exceptions)
	problems, hints, lowered := compare(measures, exceptions)
	if write || accept {
		if err := os.WriteFile(exceptionsFile, []byte(lowered), 0o644); err != nil {
			return err
		}
		problems = slices.DeleteFunc(problems, func(p problem) bool { return p.writable })
		hints = nil
	}
	for _, h := range hints {
		fmt.Fprintln(out, h)
	}
	if len(problems) == 0 {
		return nil
	}
	for _, p := range problems {
		fmt.Fprintln(out, p.text)
	}
	return fmt.Errorf("%d bounds are broken; `go run ./test/measure -write` lowers and deletes what it can in %s",
		len(problems), exceptionsFile)
}

// table prints each measure with its bound, what is worst, and how many exceptions it has.
func table(out io.Writer, measures []*measured, exceptions map[string]int) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "measure\tbound\tnow\tworst\texceptions")
	for _, m := range measures {
		n := 0
		for e := range exceptions {
			if strings.HasPrefix(e, m.key+" ") {
				n++
			}
		}
		count := "-"
		if m.key != "" {
			count = fmt.Sprint(n)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.title, m.boundText(), m.now(), m.worst(), count)
	}
	w.Flush()
}
