package doctor

import (
	"fmt"
	"time"

	"sandlot/internal/app"
)

// reportPlatforms reports what each platform of gVisor gives on this machine. It returns false if the settings' own
// does not work.
func (e *examination) reportPlatforms(tried []app.Platform) bool {
	usable := true
	for _, p := range tried {
		wanted := e.config.Runtime.Platform == p.Name
		if p.Err != nil {
			// Without kvm there is systrap, unless the settings want kvm.
			failed := wanted || p.Name == "systrap"
			usable = usable && !failed
			e.report(!failed, "platform", fmt.Sprintf("%s: does not work here: %s", p.Name, oneLine(p.Err.Error())))
			continue
		}
		use := ""
		if wanted {
			use = " (in use)"
		}
		e.report(true, "platform", fmt.Sprintf("%s%s: a system call takes %v, a process %v, a sandbox %v to start",
			p.Name, use, round(p.Call), round(p.Process), round(p.Start)))
	}
	if text := betterPlatform(e.config.Runtime.Platform, tried); text != "" {
		e.report(true, "platform", text)
	}
	return usable
}

// betterPlatform returns which platform to set in place of the present one; empty: none.
func betterPlatform(now string, tried []app.Platform) string {
	call := map[string]time.Duration{}
	for _, p := range tried {
		if p.Err == nil {
			call[p.Name] = p.Call
		}
	}
	with, without := call["kvm"], call["systrap"]
	switch {
	case with == 0 || without == 0:
		return ""
	case with < without && now == "systrap":
		return fmt.Sprintf("programs that make many system calls, or start many processes, are faster with "+
			"`platform: kvm`: a call costs %.1f times less", float64(without)/float64(with))
	case with >= without && now == "kvm":
		return fmt.Sprintf("WARNING: with `platform: systrap` a call costs %.1f times less",
			float64(with)/float64(without))
	case now == "auto":
		name := "systrap"
		if with < without {
			name = "kvm"
		}
		return "auto chooses " + name
	}
	return ""
}

// round leaves two or three digits.
func round(d time.Duration) time.Duration {
	for unit := time.Second; unit > time.Nanosecond; unit /= 10 {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}
