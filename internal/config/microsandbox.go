package config

import (
	"errors"
	"net/url"

	"sandlot/internal/fault"
)

// readMicrosandbox reads the variables of microsandbox's clients. The one with the address of a server chooses the
// runtime microsandbox, unless the settings name a runtime.
func (c *Config) readMicrosandbox(env map[string]string) error {
	if env["MSB_API_KEY"] != "" {
		c.Notes = append(c.Notes, "MSB_API_KEY is set and not used: microsandbox's program msb needs no key. Unset it")
	}
	address := env["MSB_SERVER_URL"]
	if address == "" {
		return nil
	}
	if u, err := url.Parse(address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fault.Wrap(fault.Configuration, errors.Join(err, errors.New("it is not a URL")),
			"MSB_SERVER_URL: must be the URL of a server, such as http://127.0.0.1:5555, or empty")
	}
	if c.Origin["runtime"] != "default" || c.Origin["runtimes"] != "default" {
		c.Notes = append(c.Notes, "MSB_SERVER_URL is set and not used: the settings name the runtime. Unset it")
		return nil
	}
	c.Runtime.Name, c.Origin["runtime"] = "microsandbox", "variable MSB_SERVER_URL"
	c.Notes = append(c.Notes, "MSB_SERVER_URL chooses the runtime microsandbox, whose sandboxes are virtual machines of "+
		"today's program msb on this machine; the server at that address is not used. Microsandbox's project removed such "+
		"servers in March 2026, and their sandboxes reached whatever the machine reaches, whatever their settings said")
	return nil
}
