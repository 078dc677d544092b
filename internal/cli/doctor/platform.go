package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandlot/internal/app"
	"sandlot/internal/config"
	"sandlot/internal/sandbox"
)

// tryPlatforms tries the platforms of the runtimes, in a state folder of its own.
func tryPlatforms(ctx context.Context, c *config.Config, log *slog.Logger) (tried []sandbox.Trial, err error) {
	settings := *c
	dir, err := os.MkdirTemp("", "sandlot-trial-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if settings.Server.StateDir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	all, err := app.Runtimes(&settings, log)
	if err != nil {
		return nil, err
	}
	for _, rt := range all {
		if doctor := rt.Capabilities().Doctor; doctor != nil {
			tried = append(tried, doctor.TryAll(ctx)...)
		}
		err = errors.Join(err, rt.Close())
	}
	return tried, errors.Join(err, ctx.Err())
}

// reportPlatforms reports what each platform of gVisor gives on this machine. It returns false if the settings' own
// does not work.
func (e *examination) reportPlatforms(tried []sandbox.Trial) bool {
	usable := true
	for _, p := range tried {
		wanted := e.config.Runtime.Platform == p.Platform
		if p.Err != nil {
			why := oneLine(p.Err.Error())
			// Without kvm there is systrap, unless the settings want kvm. Where systrap fails, the boot tells more.
			switch {
			case wanted && p.Platform == "kvm":
				usable = false
				e.report(false, "platform", p.Platform+": does not work here: "+why)
			case p.Platform == "kvm":
				why, _, _ = strings.Cut(why, ": ") // the rest is gVisor's own chain of errors, which helps who needs kvm
				e.note("platform", p.Platform+": does not work here, and is not needed: "+why)
			default:
				e.note("platform", p.Platform+": does not work here: "+why)
			}
			continue
		}
		use := ""
		if wanted {
			use = " (in use)"
		}
		e.report(true, "platform", fmt.Sprintf("%s%s: a system call takes %v, a process %v, a sandbox %v to start",
			p.Platform, use, round(p.Call), round(p.Process), round(p.Start)))
	}
	if text := betterPlatform(e.config.Runtime.Platform, tried); text != "" {
		e.report(true, "platform", text)
	}
	return usable
}

// betterPlatform returns which platform to set in place of the present one; empty: none.
func betterPlatform(now string, tried []sandbox.Trial) string {
	call := map[string]time.Duration{}
	for _, p := range tried {
		if p.Err == nil {
			call[p.Platform] = p.Call
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
