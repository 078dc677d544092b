package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Mode is how much a sandbox may reach when no rule says more.
type Mode string

const (
	None      Mode = "none"
	Allowlist Mode = "allowlist"
	Public    Mode = "public"
	// Open is a real interface in the sandbox, past the broker: here it counts
	// as None.
	Open Mode = "open"
)

// ParseMode reads the setting `network.mode`.
func ParseMode(s string) (Mode, error) {
	m := Mode(s)
	if !slices.Contains([]Mode{None, Allowlist, Public, Open}, m) {
		return None, fmt.Errorf("network mode %q is none of none, allowlist, public and open", printable(s))
	}
	return m, nil
}

// Target is where a connection goes. Name is empty when the sandbox asked for
// an address; Addr is not valid when the name is resolved by the operator's
// proxy.
type Target struct {
	Name string
	Addr netip.Addr
	Port uint16
}

// Host is the name, or else the address.
func (t Target) Host() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Addr.String()
}

// Private is the operator's exception: these hosts may be reached, and may be
// in that range.
type Private struct {
	Host Rule         `json:"host"`
	Net  netip.Prefix `json:"cidr"`
}

// opens says whether the range opens an address of that kind. What nobody means
// by a large range, such as a cloud's metadata, has to be named more exactly.
func (p Private) opens(a netip.Addr, k kind) bool {
	if !p.Net.Contains(a) || k.open == never {
		return false
	}
	return k.open == named || k.prefix.Bits() <= p.Net.Bits()
}

// Policy is what one sandbox may reach. It is not changed once an Outlet has it.
// A nil one, and one with a mode that is not known, allow nothing.
type Policy struct {
	Mode  Mode   `json:"mode"`
	Allow []Rule `json:"allow,omitempty"`
	// Private hosts are allowed like those of Allow, and in their range too.
	Private []Private `json:"allow_private,omitempty"`
	// Registries are hosts that the operator's own settings name: they are
	// allowed wherever they are, this machine included, but never among
	// link-local addresses, where metadata services are.
	Registries []Rule `json:"registries,omitempty"`
}

func (p *Policy) on() bool { return p != nil && (p.Mode == Allowlist || p.Mode == Public) }

// listed says whether the operator named that target.
func (p *Policy) listed(t Target) bool { return covered(p.Allow, t) || p.excepted(t) }

// excepted says whether the operator named that target and said that it need
// not be public.
func (p *Policy) excepted(t Target) bool {
	return covered(p.Registries, t) ||
		slices.ContainsFunc(p.Private, func(x Private) bool { return x.Host.covers(t) })
}

// covered says whether one of the rules names that target.
func covered(rules []Rule, t Target) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.covers(t) })
}

// refuseName judges a target before its name is resolved. The error says why it may not
// be reached, whatever its address. Port 0 asks whether any port may.
func (p *Policy) refuseName(t Target) error {
	switch {
	case !p.on():
		return noNetwork
	case localName(t.Name) && !p.excepted(t):
		return refused{why: "this is a name of the server itself"}
	case p.Mode == Public || p.listed(t):
		return nil
	case t.Port != 0 && p.listed(Target{Name: t.Name, Addr: t.Addr}):
		return otherPorts
	}
	return noRule
}

// Reasons that the operator can remove with a rule, or a mode.
var (
	noNetwork  = refused{"this session has no network", AMode}
	otherPorts = refused{"the rules allow this host on other ports only", ARule}
	noRule     = refused{"no rule allows it", ARule}
)

func atAddress(a netip.Addr, what string) error {
	return refused{fmt.Sprintf("its address %s is %s", a, what), AnException}
}

// localName says whether a name means the machine that resolves it.
func localName(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last == "localhost" || last == "localdomain" || strings.HasSuffix(name, "-localhost") ||
		strings.HasSuffix(name, "-loopback")
}

// refuseAddress judges the address, whatever the name says.
func (p *Policy) refuseAddress(t Target, own []netip.Prefix) error {
	k, special := kindOf(t.Addr)
	if (!special || k.open == named) && covered(p.Registries, t) {
		return nil
	}
	if slices.ContainsFunc(p.Private, func(x Private) bool { return x.Host.covers(t) && x.opens(t.Addr, k) }) {
		return nil
	}
	switch {
	case len(own) == 0:
		return refused{why: "the server's own addresses are not known now"}
	case special:
		return atAddress(t.Addr, k.what)
	}
	if what := near(t.Addr, own); what != "" {
		return atAddress(t.Addr, what)
	}
	return nil
}

// refuse judges a target as a whole. One without an address is resolved by the
// operator's proxy, which is for names that the operator listed.
func (p *Policy) refuse(t Target, own []netip.Prefix) error {
	if err := p.refuseName(t); err != nil {
		return err
	}
	if t.Addr.IsValid() {
		return p.refuseAddress(t, own)
	}
	if !p.listed(t) {
		return noRule
	}
	return nil
}
