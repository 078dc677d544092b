// Package pkgregistry says where a sandbox's package managers fetch packages. It
// owns the rule that only addresses come out of the machine's settings: no
// credential, no path of a file, no command.
//
// No registry is known here by name. What is public and what a mirror is, the
// machine's own tools say.
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

// Set is where packages come from. What is empty is not set: its tool is not on
// the machine, or the operator turned it off. All URLs are without user,
// password and query, and safe to write into a file of settings as they are.
type Set struct {
	NPM       string
	NPMMirror bool              // it is another than npm's own default
	Scopes    map[string]string // "@scope" → URL

	PyPI      string
	PyPIExtra []string
	// PyPITrusted are hosts, or host:port, whose certificate pip does not check.
	PyPITrusted []string

	// Go is a GOPROXY list: URLs, "direct" and "off", and the commas and bars
	// between them, which mean different things.
	Go    string
	GoSum string            // GOSUMDB
	GoEnv map[string]string // GOPRIVATE and its like, where they are set

	// Hosts are all that must be reachable for the above, sorted: also a host
	// from which an index hands out its files, where its tool knows that.
	Hosts []Host
	// Notes says what was not taken and why, for the operator's log. No
	// credential and no part of a refused address is in them.
	Notes []string
}

// Host is a name in lower case, or an address without brackets, and a port.
type Host struct {
	Name string
	Port int
}

func (h Host) String() string { return net.JoinHostPort(h.Name, strconv.Itoa(h.Port)) }

// Keys are the names that the operator's setting may have.
var Keys = []string{"npm", "pypi", "go"}

// Check says whether the operator's setting can be used: addresses by Keys,
// where go may be a whole GOPROXY list. It does no I/O.
func Check(named map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if !slices.Contains(Keys, key) {
			return fmt.Errorf("%q is not one of %s", key, strings.Join(Keys, ", "))
		}
		urls := []string{named[key]}
		if key == "go" {
			urls = strings.FieldsFunc(named[key], goSeparator)
		}
		for _, raw := range urls {
			if key == "go" && goWord(raw) {
				continue
			}
			a, err := clean(raw)
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

// builder puts a Set together out of what the tools said.
type builder struct {
	Set
	hosts map[Host]bool
}

func (b *builder) notef(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// take is the address of a setting, made clean; "" when it has none of use.
// Its host is one that must be reachable.
func (b *builder) take(setting, raw string) string {
	a, ok := b.check(setting, raw)
	if ok {
		b.hosts[a.host] = true
	}
	return a.url
}

func (b *builder) check(setting, raw string) (address, bool) {
	if raw == "" {
		return address{}, false
	}
	a, err := clean(raw)
	if err != nil {
		b.notef("%s is not taken: %v", setting, err)
		return address{}, false
	}
	if a.stripped {
		b.notef("%s: the address is taken without its credentials or query", setting)
	}
	return a, true
}

func (b *builder) done() Set {
	b.Hosts = slices.SortedFunc(maps.Keys(b.hosts),
		func(x, y Host) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port)) })
	return b.Set
}
