// Command campaign runs the tests of Sandlot in stages and parts, and keeps how long they take.
//
//	campaign stage NAME COMMAND...   run a command, and record its times
//	campaign tests NAME ARGS...      run `gotestsum ARGS`, and record the times of the stage and of each test
//	campaign packages race|plain     print the packages whose tests run with the race detector, and without it
//	campaign skip unit|whole         print the pattern of the tests that only a part of the campaign runs
//	campaign run PART|all|next       run a part; next: the one in turn, and those whose folders were changed, if time
//	                                 is left
//	campaign report                  print the stages, the slowest tests, and those that passed at a second attempt
//	campaign parts                   print the table of parts
//
// The first stage after `campaign begin` starts a new record. `make test` and `make campaign` call it.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: begin, stage, tests, packages, skip, run, report or parts")
	}
	r := &record{dir: recordDir()}
	switch what, args := args[0], args[1:]; {
	case what == "begin" && len(args) == 0:
		return r.begin()
	case what == "stage" && len(args) > 1:
		return r.stage(args[0], exec.Command(args[1], args[2:]...))
	case what == "tests" && len(args) > 1:
		return r.tests(args[0], nil, args[1:]...)
	case what == "packages" && len(args) == 1:
		list, err := packages(args[0])
		fmt.Println(strings.Join(list, " "))
		return err
	case what == "skip" && len(args) == 1:
		fmt.Println(skipped(args[0]))
		return nil
	case what == "run" && len(args) == 1:
		if args[0] == "next" {
			return next(r)
		}
		return runParts(r, args[0])
	case what == "report" && len(args) == 0:
		return r.report(os.Stdout)
	case what == "parts" && len(args) == 0:
		fmt.Print(table())
		return nil
	}
	return fmt.Errorf("unknown: %q", args)
}
