package reason

import (
	"errors"
	"fmt"
	"testing"

	"sandlot/internal/sandbox"
)

// TestStart: what is wrong with a template's image is told, and nothing of the server.
func TestStart(t *testing.T) {
	told := fmt.Errorf("docker: no sandbox of it: %w", sandbox.Explain("in the image, /root is a symbolic link",
		errors.New("/var/lib/sandlot/secret")))
	if got := Start(told); got != "in the image, /root is a symbolic link" {
		t.Errorf("told: %q", got)
	}
	if got := Start(errors.New("/var/lib/sandlot/secret")); got != "the runtime could not start it; the server's log says why" {
		t.Errorf("not told: %q", got)
	}
}
