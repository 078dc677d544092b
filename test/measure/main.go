// Measure gives advice about the shape of the code. It lists what is larger than most of the code is, the worst
// first, and fails nothing.
//
//	go run ./test/measure                      the worst ten, and the size of the code
//	go run ./test/measure -list internal/hub   all of them in a folder
//
// Code is every Go file, of every system, without tests, generated files, and packages for tests (below test/, or
// with a name that ends in "test"). The advice about long lines is for tests too.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// shown is how many findings are printed without -list.
const shown = 10

func main() {
	folder := flag.String("list", "", "list all findings in this folder, such as internal/hub")
	flag.Parse()
	m, err := measure(os.DirFS("."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
	m.print(os.Stdout, strings.TrimSuffix(*folder, "/"))
}

// print writes the worst findings, or all findings in a folder.
func (m *measured) print(out io.Writer, folder string) {
	found := m.findings
	if folder != "" {
		found = nil
		for _, f := range m.findings {
			if f.in(folder) {
				found = append(found, f)
			}
		}
	} else if len(found) > shown {
		found = found[:shown]
	}
	for _, f := range found {
		at := ""
		if f.at != "" {
			at = ", " + f.at
		}
		fmt.Fprintf(out, "advice: %s has %d %s, more than %d%s\n", f.name, f.value, f.unit, f.bound, at)
	}
	if more := len(m.findings) - len(found); more > 0 && folder == "" {
		fmt.Fprintf(out, "advice: %d more: go run ./test/measure -list .\n", more)
	}
	if folder == "" {
		fmt.Fprintf(out, "size: %d lines of code, with %d of comments, in %d packages\n", m.lines, m.comments,
			m.packages)
	}
}
