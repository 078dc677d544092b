package dockercommand

import (
	"fmt"
	"path"
)

// place is where a program has the socket of its Docker daemon.
type place struct{ program, address string }

// machine is what the places depend on.
type machine struct {
	system string // as in runtime.GOOS
	uid    int
	getenv func(string) string
}

// usual is the address that the docker command uses without settings.
func (m machine) usual() place {
	if m.system == "windows" {
		return place{"Docker", "npipe:////./pipe/docker_engine"}
	}
	return place{"Docker", "unix:///var/run/docker.sock"}
}

// places returns where daemons are looked for, in this order: those of Linux that make no context of the docker
// command. All others do.
func places(m machine) []place {
	if m.system != "linux" {
		return []place{m.usual()}
	}
	run := m.getenv("XDG_RUNTIME_DIR")
	if !path.IsAbs(run) {
		run = fmt.Sprintf("/run/user/%d", m.uid)
	}
	podman := run
	if m.uid == 0 {
		podman = "/run"
	}
	return []place{m.usual(), {"rootless Docker", "unix://" + path.Join(run, "docker.sock")},
		{"Podman", "unix://" + path.Join(podman, "podman/podman.sock")}}
}
