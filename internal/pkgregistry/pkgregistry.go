// Package pkgregistry finds out from which registries a sandbox's package managers fetch
// packages. Of the host's settings it passes on only addresses: no credential, no path
// of a file, no command.
//
// It knows no registry by name, but the archives of Debian and Ubuntu, which their images use. The host's own tools
// know their default registries, and which mirrors are configured.
package pkgregistry

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Set is where packages come from. An empty field is not set: the tool is not on the
// host, or the operator turned it off. The URLs have no user, password or query, and
// need no quotes in config files.
type Set struct {
	NPM       string
	NPMMirror bool              // NPM is not the default registry of npm
	Scopes    map[string]string // "@scope" → URL

	PyPI      string
	PyPIExtra []string
	// PyPITrusted are hosts, or host:port, whose certificate pip does not check.
	PyPITrusted []string

	// Go is a GOPROXY list: URLs, "direct" and "off", separated by commas or bars, which
	// differ in when Go tries the next entry.
	Go      string
	GoSumDB string            `json:"GoSum"` // GOSUMDB
	GoEnv   map[string]string // GOPRIVATE, GONOPROXY and so on, as far as they are set

	// Apt is the archive of the machine's distribution; empty: it is not Debian or Ubuntu.
	Apt []AptSource

	// Hosts are all hosts that must be reachable for the above, sorted. They include the
	// host that serves the files of an index, if its tool knows that.
	Hosts []Host
	// Notes say which settings are not used and why, for the operator's log. They have
	// no credential and no part of a refused address.
	Notes []string
}

// Host is a host name in lower case, or an IP address without brackets, and a port.
type Host struct {
	Name string
	Port int
}

func (h Host) String() string { return net.JoinHostPort(h.Name, strconv.Itoa(h.Port)) }

// Keys are the keys that the operator's setting may have.
var Keys = []string{"npm", "pypi", "go", "apt"}

// Check returns an error if the operator's setting is invalid. It has URLs by Keys; that
// of go may be a GOPROXY list. Check does no I/O.
func Check(configured map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(configured)) {
		if !slices.Contains(Keys, key) {
			return fmt.Errorf("%q is not one of %s", key, strings.Join(Keys, ", "))
		}
		urls := []string{configured[key]}
		if key == "go" {
			urls = strings.FieldsFunc(configured[key], isGoSeparator)
		}
		for _, raw := range urls {
			if key == "go" && isGoKeyword(raw) {
				continue
			}
			a, err := parseAddress(raw)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if a.stripped {
				return fmt.Errorf("%s: an address with credentials would show them to every sandbox; leave them out",
					key)
			}
		}
		if len(urls) == 0 {
			return fmt.Errorf("%s: no address", key)
		}
	}
	return nil
}

// builder makes a Set from the settings of the tools.
type builder struct {
	Set
	hosts map[Host]bool
}

func (b *builder) notef(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// addURL returns the URL of a setting without its secret parts, and adds its host to those
// that must be reachable; "" if the setting has no valid URL.
func (b *builder) addURL(setting, raw string) string {
	a, ok := b.parseSetting(setting, raw)
	if ok {
		b.hosts[a.host] = true
	}
	return a.url
}

func (b *builder) parseSetting(setting, raw string) (address, bool) {
	if raw == "" {
		return address{}, false
	}
	a, err := parseAddress(raw)
	if err != nil {
		b.notef("%s is not taken: %v", setting, err)
		return address{}, false
	}
	if a.stripped {
		b.notef("%s: the address is taken without its credentials or query", setting)
	}
	return a, true
}

func (b *builder) build() Set {
	b.Hosts = slices.SortedFunc(maps.Keys(b.hosts),
		func(x, y Host) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port)) })
	return b.Set
}
