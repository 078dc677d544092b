// Package program owns the agent's program for the processor of a runtime's machine: the agents for all processors are
// in this program, compressed, and are written to a folder when they are used.
package program

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// machines are the processors that the programs of Sandlot are built for, by the names that uname, Docker and Podman
// have for them.
var machines = map[string]elf.Machine{"x86_64": elf.EM_X86_64, "amd64": elf.EM_X86_64, "aarch64": elf.EM_AARCH64,
	"arm64": elf.EM_AARCH64}

// architectures are the names that Go has for them.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// Check returns an error that says what to do, if the file at path is not a program for Linux and that processor. Any
// processor will do if the name of the machine's is not known.
func Check(path, machine string) error {
	name := filepath.Base(path)
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || !executable(st.Mode()) {
		return fmt.Errorf("the program %s is not at %s; run `make build`", name, path)
	}
	want, known := machines[machine]
	arch := architectures[want]
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is not a program for Linux; run %s", path, command(name, arch))
	}
	defer f.Close()
	if known && f.Machine != want {
		return fmt.Errorf("%s is built for %s, and the sandboxes' machine is %s; run %s", path, described(f.Machine),
			arch, command(name, arch))
	}
	return nil
}

// command returns the command that builds a program for that processor; empty: for that of this machine.
func command(name, arch string) string {
	if arch != "" {
		arch = "GOARCH=" + arch + " "
	}
	return fmt.Sprintf("`CGO_ENABLED=0 GOOS=linux %sgo build -o bin/ ./cmd/%s`", arch, name)
}

// described returns Go's name of a processor, or the one of the ELF format.
func described(m elf.Machine) string {
	if arch, found := architectures[m]; found {
		return arch
	}
	return m.String()
}

func executable(m fs.FileMode) bool { return m&0o111 != 0 || !permissionsTell }
