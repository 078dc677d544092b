package doctor

import (
	"errors"
	"testing"

	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// prebooter is a runtime that may make preboot images.
type prebooter struct {
	sandbox.Preboot
	sandboxtest.Fake
	why error
}

func (s *prebooter) CanPreboot() error { return s.why }

func (s *prebooter) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{Preboot: s} }

// The doctor reports whether sandboxes start from preboot images, or else why not.
func TestDoctorOnSnapshots(t *testing.T) {
	for want, rt := range map[string]sandbox.Runtime{
		"new sandboxes start from one that has booted, some seconds after the server's start": &prebooter{},
		"none, each sandbox boots: they are turned " +
			"off": &prebooter{why: errors.New("they are turned off")},
		"none, each sandbox boots: the runtime " + (&sandboxtest.Fake{}).Name() + " makes none": &sandboxtest.Fake{},
	} {
		if got := snapshots(rt); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
