package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mountedTools is where a user who has logged in finds the tools of the tests: the way to them may be closed to others
// than root.
const mountedTools = "/run/tools"

// mountTools gives the user the tools of the tests.
func (l *login) mountTools() {
	l.t.Helper()
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(l.pid), "--mount", "sh", "-ec",
		`mkdir "$1"; mount --bind "$0" "$1"`, tools(l.t), mountedTools)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
}

// own makes a folder, and what is in it, the user's.
func (l *login) own(folder string) {
	l.t.Helper()
	if err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, serviceUser, serviceUser))
	}); err != nil {
		l.t.Fatal(err)
	}
}

// agent is a program of an agent of the user, in a folder.
func (l *login) agent(ctx context.Context, folder string, env, argv []string) *exec.Cmd {
	words := append(append([]string{"env", "--chdir=" + folder}, env...), argv...)
	for i, w := range words {
		words[i] = strings.ReplaceAll(w, tools(l.t), mountedTools)
	}
	return l.command(ctx, words...)
}

// restarts are those of the user's service. It is upgraded to a release.
func (l *login) restarts(s *server, release string) restarts {
	again := func(do func()) func() {
		return func() {
			before := l.status(s.program).PID
			do()
			s.awaitReady()
			if now := l.status(s.program); now.PID == before || !now.Running {
				l.t.Errorf("the service has not started again: %+v", now)
			}
		}
	}
	return restarts{
		stop: again(func() { l.want(0, "systemctl", "--user", "restart", "sandlot") }),
		kill: again(func() { l.want(0, "kill", "-9", strconv.Itoa(l.status(s.program).PID)) }),
		upgrade: again(func() {
			says(l.t, l.want(0, s.program, "upgrade", release, "--yes"), laterVersion)
			says(l.t, l.want(0, s.program, "service", "restart"), "The server runs")
			if now := l.status(s.program); now.Serving != laterVersion {
				l.t.Errorf("the server is not the new one: %+v", now)
			}
		}),
	}
}

// driveService has an agent of a user follow the script, with the user's service under a real systemd, which restarts it,
// starts it again after a crash, and starts the programs of a later release.
func (a agent) driveService(t *testing.T, over, release string) {
	t.Helper()
	l := beginLogin(t)
	l.mountTools()
	s := &server{t: t, URL: "http://127.0.0.1:8000", log: &logBuffer{}, program: l.program("bin"), user: serviceUser,
		env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.home}}
	says(t, l.want(0, s.program, "service", "install", "--port", "8000", "--yes"), "The server runs")
	s.State = l.status(s.program).StateDir
	home, later := filepath.Join(filepath.Dir(l.home), "agent"), filepath.Join(l.home, "release")
	if err := errors.Join(os.Mkdir(home, 0o700), os.CopyFS(later, os.DirFS(release))); err != nil {
		t.Fatal(err)
	}
	l.own(later)
	l.own(filepath.Dir(s.program)) // which the upgrade replaces
	r := &agentRun{agent: a, t: t, s: s, home: home, over: over, user: l}
	r.follow(l.restarts(s, later))
	says(t, l.want(0, s.program, "service", "remove"), "removed")
	l.want(0, s.program, "stop", "--sessions")
}

// TestAgentsOfAService: agents keep working with their model while systemd restarts their server, while it crashes, and
// while it is upgraded: one that starts its program again when that ends, and one that does not; and over HTTP one that
// begins no new session when its own is gone, and one that is lost when it cannot subscribe again at once.
func TestAgentsOfAService(t *testing.T) {
	alone(t, func(t *testing.T) {
		release := laterRelease(t)
		for _, a := range []agent{claudeCode, codexCLI, commandLine("gemini"), commandLine("copilot")} {
			for _, over := range []string{"HTTP", "stdio"} {
				if over == "stdio" && a.folder != "" { // TestCommandLinesByStdio has the others
					continue
				}
				t.Run(fmt.Sprintf("%s over %s", a.title, over), func(t *testing.T) { a.driveService(t, over, release) })
			}
		}
	})
}

// commandLine returns an agent for the terminal by its name for `sandlot install`.
func commandLine(name string) agent {
	i := slices.IndexFunc(commandLines, func(a agent) bool { return a.install == name })
	return commandLines[i]
}
