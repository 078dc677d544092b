// Command build makes internal/console/dist of internal/console/web: go run ./internal/console/build
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run() error {
	files, err := bundle("internal/console/web")
	if err != nil {
		return err
	}
	return write("internal/console/dist", files)
}
