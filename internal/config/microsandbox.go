package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"sandlot/internal/fault"
)

// byAddress is the origin of the setting runtime that the address of a server of microsandbox has chosen.
const byAddress = "variable MSB_SERVER_URL"

// readMicrosandbox reads the variables of microsandbox's clients. The one with the address of a server chooses the
// runtime microsandbox, unless the settings name a runtime, or a server without microsandbox has used the state folder.
func (c *Config) readMicrosandbox(env map[string]string) error {
	if env["MSB_API_KEY"] != "" {
		c.Notes = append(c.Notes, "MSB_API_KEY is set and not used: microsandbox's program msb needs no key. Unset it")
	}
	address := env["MSB_SERVER_URL"]
	if address == "" {
		return nil
	}
	if c.namesRuntime() {
		c.Notes = append(c.Notes, "MSB_SERVER_URL is set and not used: the settings name the runtime. Unset it")
		return nil
	}
	if dir := c.Server.StateDir; hasSandboxes(dir) {
		c.Notes = append(c.Notes, fmt.Sprintf("MSB_SERVER_URL is set and not used: the state folder %s has sessions of the "+
			"runtime %s, which microsandbox could not go on with. Unset it, or set runtime: microsandbox, which ends those "+
			"sessions", fault.Printable(dir, 200), defaultRuntime()))
		return nil
	}
	if u, err := url.Parse(address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fault.Wrap(fault.Configuration, errors.Join(err, errors.New("it is not a URL")),
			"MSB_SERVER_URL: must be the URL of a server, such as http://127.0.0.1:5555, or empty")
	}
	c.Runtime.Name, c.Origin["runtime"] = "microsandbox", byAddress
	c.Notes = append(c.Notes, "MSB_SERVER_URL chooses the runtime microsandbox, whose sandboxes are virtual machines of "+
		"today's program msb on this machine; the server at that address is not used. Microsandbox's project removed such "+
		"servers in March 2026, and their sandboxes reached whatever the machine reaches, whatever their settings said")
	return nil
}

// namesRuntime reports whether the settings name a runtime. A template that names microsandbox agrees with the variable.
func (c *Config) namesRuntime() bool {
	return c.Origin["runtime"] != "default" || c.Origin["runtimes"] != "default" ||
		slices.ContainsFunc(c.Templates, func(t Template) bool { return t.Runtime != "" && t.Runtime != "microsandbox" })
}

// hasSandboxes reports whether a server whose runtime was the default one has used a state folder, and none whose
// runtime was microsandbox. What it looks for stays when the last session has ended: an unrelated restart must not
// change what isolates sandboxes. `sandlot doctor` makes folders for sandboxes too, but none for workspaces.
func hasSandboxes(stateDir string) bool {
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			_, err := os.Stat(filepath.Join(stateDir, name))
			return err == nil
		})
	}
	folders := []string{"docker"}
	if defaultRuntime() == "gvisor" {
		folders = []string{"sandboxes", "snapshots"}
	}
	return has("workspaces") && has(folders...) && !has("msb")
}

// RuntimeHint returns what to add to an error about the runtime, if a variable has chosen it: its users may not know.
func (c *Config) RuntimeHint() string {
	if c.Origin["runtime"] != byAddress {
		return ""
	}
	return " (MSB_SERVER_URL chose it; unset it, or set runtime: " + defaultRuntime() + ")"
}
