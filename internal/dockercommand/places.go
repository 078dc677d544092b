package dockercommand

import (
	"fmt"
	"path"
	"strings"
)

// place is where a program has the socket of its Docker daemon.
type place struct{ program, address string }

// machine is what the places depend on.
type machine struct {
	system string // as in runtime.GOOS
	home   string
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

// places returns where daemons are looked for, in this order.
func places(m machine) []place {
	switch m.system {
	case "windows":
		return []place{m.usual(), {"Docker Desktop", "npipe:////./pipe/dockerDesktopLinuxEngine"},
			{"Podman", "npipe:////./pipe/podman-machine-default"}}
	case "darwin":
		desktop := m.at("Docker Desktop", "~/.docker/run/docker.sock")
		return concat([]place{m.usual()}, desktop, m.colima(), m.at("OrbStack", "~/.orbstack/run/docker.sock"),
			m.at("Rancher Desktop", "~/.rd/docker.sock"), m.podmanMachine(), m.lima())
	}
	run, desktop := m.folder("XDG_RUNTIME_DIR", fmt.Sprintf("/run/user/%d", m.uid)),
		m.at("Docker Desktop", "~/.docker/desktop/docker.sock", "~/.docker/run/docker.sock")
	podman := m.at("Podman", path.Join(run, "podman/podman.sock"))
	if m.uid == 0 {
		podman = m.at("Podman", "/run/podman/podman.sock")
	}
	return concat([]place{m.usual()}, m.at("rootless Docker", path.Join(run, "docker.sock")), desktop, m.colima(),
		m.at("Rancher Desktop", "~/.rd/docker.sock"), podman, m.lima())
}

// colima returns where Colima has its socket: since 0.6 it takes a folder of XDG if there is one.
func (m machine) colima() []place {
	if dir := m.folder("COLIMA_HOME", ""); dir != "" {
		return m.at("Colima", path.Join(dir, "default/docker.sock"))
	}
	return m.at("Colima", "~/.colima/default/docker.sock", "~/.colima/docker.sock",
		path.Join(m.folder("XDG_CONFIG_HOME", "~/.config"), "colima/default/docker.sock"))
}

// podmanMachine returns where `podman machine` has its socket: in a temporary folder since version 5, before that in
// the folder of the machine, which has the name of what runs it.
func (m machine) podmanMachine() []place {
	names := []string{"podman.sock"}
	for _, kind := range []string{"applehv", "libkrun", "qemu", "podman-machine-default"} {
		names = append(names, path.Join(kind, "podman.sock"))
	}
	all := m.at("Podman", path.Join(m.folder("TMPDIR", "/tmp"), "podman/podman-machine-default-api.sock"))
	dir := path.Join(m.folder("XDG_DATA_HOME", "~/.local/share"), "containers/podman/machine")
	for _, name := range names {
		all = append(all, m.at("Podman", path.Join(dir, name))...)
	}
	return all
}

// lima returns where Lima has the sockets of its templates docker and podman.
func (m machine) lima() []place {
	dir := m.folder("LIMA_HOME", "~/.lima")
	return m.at("Lima", path.Join(dir, "docker/sock/docker.sock"), path.Join(dir, "default/sock/docker.sock"),
		path.Join(dir, "podman/sock/podman.sock"))
}

// folder returns the folder that a variable names, by its absolute path, or else another one.
func (m machine) folder(variable, otherwise string) string {
	if dir := m.getenv(variable); path.IsAbs(dir) {
		return dir
	}
	return otherwise
}

// at returns the places with these paths, of which those below a home folder, ~, need one.
func (m machine) at(program string, paths ...string) (all []place) {
	for _, p := range paths {
		if rest, below := strings.CutPrefix(p, "~/"); below {
			if !path.IsAbs(m.home) {
				continue
			}
			p = path.Join(m.home, rest)
		}
		all = append(all, place{program, "unix://" + p})
	}
	return all
}

func concat(lists ...[]place) (all []place) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
