package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/sandbox"
)

// TestPlatforms: the doctor says what each platform costs, which of them fails, and which would be better.
func TestPlatforms(t *testing.T) {
	works := func(name string, call time.Duration) sandbox.Trial {
		return sandbox.Trial{Platform: name, Call: call, Process: 2345678, Start: 167 * time.Millisecond}
	}
	broken := sandbox.Trial{Platform: "kvm", Err: errors.New("there is no /dev/kvm")}
	chain := sandbox.Trial{Platform: "kvm",
		Err: errors.New("its sandbox did not start (exit status 128): running container: EOF")}
	for _, tt := range []struct {
		now    string
		tried  []sandbox.Trial
		usable bool
		want   string // what the checks say together
	}{
		{"systrap", []sandbox.Trial{works("systrap", 15432), broken}, true,
			"ok systrap (in use): a system call takes 15.4µs, a process 2.35ms, a sandbox 167ms to start; " +
				"- kvm: does not work here, and is not needed: there is no /dev/kvm"},
		{"systrap", []sandbox.Trial{{Platform: "systrap", Err: errors.New("odd")}, broken}, true,
			"- systrap: does not work here: odd"},
		{"kvm", []sandbox.Trial{works("systrap", 15432), broken}, false,
			"FAIL kvm: does not work here: there is no /dev/kvm"},
		{"auto", []sandbox.Trial{works("systrap", 15432), broken}, true, "- kvm: does not work here"},
		{"auto", []sandbox.Trial{works("systrap", 15432), chain}, true,
			"- kvm: does not work here, and is not needed: its sandbox did not start (exit status 128)"},
		{"kvm", []sandbox.Trial{works("systrap", 15432), chain}, false,
			"FAIL kvm: does not work here: its sandbox did not start (exit status 128): running container: EOF"},
		{"auto", []sandbox.Trial{works("systrap", 9000), works("kvm", 500)}, true, "ok auto chooses kvm"},
		{"auto", []sandbox.Trial{works("systrap", 400), works("kvm", 500)}, true, "ok auto chooses systrap"},
		{"systrap", []sandbox.Trial{works("systrap", 9000), works("kvm", 500)}, true,
			"platform: kvm`: a call costs 18.0 times"},
		{"kvm", []sandbox.Trial{works("systrap", 500), works("kvm", 1000)}, true,
			"- WARNING: with `platform: systrap` a call costs 2.0 times"},
	} {
		var said []string
		c := &config.Config{}
		c.Runtime.Platform = tt.now
		e := &examination{config: c, tell: func(c Check) {
			said = append(said, Mark(c)+" "+c.Detail)
		}}
		usable := e.reportPlatforms(tt.tried)
		if text := strings.Join(said, "; "); usable != tt.usable || !strings.Contains(text, tt.want) ||
			tt.usable && strings.Contains(text, "running container") {
			t.Errorf("%s: usable: %v; %s", tt.now, usable, text)
		}
	}
}
