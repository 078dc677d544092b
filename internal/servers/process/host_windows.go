package process

import (
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/windows"

	"sandlot/internal/servers/spec"
)

// attributes are for the start of a program of the host: spec knows no other user than the server's.
func attributes(*spec.Credential) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// signalText returns nothing: what this system calls a signal is not what Linux, on which sandboxes are, does.
func signalText(int) string { return "" }

// awaitExit waits until a process has ended.
func awaitExit(p *os.Process) {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(p.Pid))
	if err != nil {
		return
	}
	defer windows.CloseHandle(h)
	_, _ = windows.WaitForSingleObject(h, windows.INFINITE)
}

// endSignal returns 0: Windows ends processes by no signals.
func endSignal(*os.ProcessState) int { return 0 }

// readNow reads nothing: sockets of Windows wait for bytes.
func readNow(uintptr, []byte) (int, error) { return 0, io.EOF }
