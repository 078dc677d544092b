// Sandlot gives every AI agent, and each of its users, a safe computer over MCP.
package main

import (
	"os"

	"sandlot/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
