// Package leaktest finds goroutines that tests have left behind.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Goroutines waits until no goroutine is left whose stack matches, for ten seconds at most, and returns the stacks of
// those that are.
func Goroutines(matches func(stack string) bool) (left string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left = ""
		buf := make([]byte, 4<<20)
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if matches(stack) {
				left += stack + "\n\n"
			}
		}
		if left == "" || time.Now().After(end) {
			return left
		}
	}
}

// Main runs the tests of a package, and ends the process. It fails if the tests pass and leave goroutines of the
// package, whose name ends with a dot.
func Main(m *testing.M, name string) {
	code := m.Run()
	if code != 0 {
		os.Exit(code)
	}
	if left := Goroutines(func(stack string) bool {
		return strings.Contains(stack, name) && !strings.Contains(stack, "leaktest.Goroutines(")
	}); left != "" {
		fmt.Fprintln(os.Stderr, "goroutines were left:\n"+left)
		os.Exit(1)
	}
	os.Exit(0)
}
