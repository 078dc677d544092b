package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Mode says what a sandbox may reach without a rule that allows more.
type Mode string

const (
	None      Mode = "none"
	Allowlist Mode = "allowlist"
	Public    Mode = "public"
	// Open gives the sandbox the machine's network without the broker. For the broker it is
	// the same as None.
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

// Narrower reports whether a sandbox reaches less with the mode than with another one.
func (m Mode) Narrower(than Mode) bool { return m.width() < than.width() }

// width orders the modes by what a sandbox reaches; a mode that is not known allows nothing.
func (m Mode) width() int { return max(0, slices.Index([]Mode{None, Allowlist, Public, Open}, m)) }

// Target is the destination of a connection. Name is empty when the sandbox asked for an
// address; Addr is not valid when the operator's proxy resolves the name.
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

// Private is an exception of the operator: these hosts may be reached even if their
// addresses are in that range, which is not public.
type Private struct {
	Host Rule         `json:"host"`
	Net  netip.Prefix `json:"cidr"`
}

// allows reports whether the exception allows an address of class k. A cloud's metadata service
// is hardly meant by a large range around it, so it needs a range within that of its class.
func (p Private) allows(a netip.Addr, k addrClass) bool {
	if !p.Net.Contains(a) || k.exception == noException {
		return false
	}
	return k.exception == containingRange || k.prefix.Bits() <= p.Net.Bits()
}

// Policy is what one sandbox may reach. It is not changed once an Outlet has it. A nil
// Policy, and one with an unknown mode, allow nothing.
type Policy struct {
	Mode  Mode   `json:"mode"`
	Allow []Rule `json:"allow,omitempty"`
	// Private hosts are allowed like Allow's, and also in the range of the exception.
	Private []Private `json:"allow_private,omitempty"`
	// Registries are the package registries in the operator's settings. They are allowed at
	// any address, this machine included, but not at link-local ones, where metadata
	// services are.
	Registries []Rule `json:"registries,omitempty"`
}

// enabled reports whether the policy allows anything.
func (p *Policy) enabled() bool { return p != nil && (p.Mode == Allowlist || p.Mode == Public) }

// listed reports whether one of the operator's rules or exceptions matches the target.
func (p *Policy) listed(t Target) bool { return anyMatches(p.Allow, t) || p.isException(t) }

// isException reports whether the operator allows the target at addresses that are not public.
func (p *Policy) isException(t Target) bool {
	return anyMatches(p.Registries, t) ||
		slices.ContainsFunc(p.Private, func(x Private) bool { return x.Host.matches(t) })
}

// Excepts reports whether the operator allows a host at addresses that are not public (network.allow_private).
func (p *Policy) Excepts(host string, port uint16) bool {
	t := Target{Name: strings.ToLower(strings.TrimSuffix(host, ".")), Port: port}
	if a, err := netip.ParseAddr(host); err == nil {
		t = Target{Addr: a.Unmap(), Port: port}
	}
	return p != nil && slices.ContainsFunc(p.Private, func(x Private) bool { return x.Host.matches(t) })
}

// anyMatches reports whether one of the rules matches the target.
func anyMatches(rules []Rule, t Target) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.matches(t) })
}

// checkName checks a target before its name is resolved. It returns a refusalError if the
// target may not be reached, whatever its address. Port 0 stands for any port.
func (p *Policy) checkName(t Target) error {
	switch {
	case !p.enabled():
		return noNetwork
	case localName(t.Name) && !p.isException(t):
		return refusalError{why: "this is a name of the server itself", cause: OwnName}
	case p.Mode == Public || p.listed(t):
		return nil
	case t.Port != 0 && p.listed(Target{Name: t.Name, Addr: t.Addr}):
		return otherPort(p.Allow, t)
	}
	return noRule
}

// Refusals that the operator can change with a rule or a mode, beside otherPort.
var (
	noNetwork = refusalError{why: "this session has no network", cause: NoNetwork}
	noRule    = refusalError{why: "no rule allows it", cause: NotListed}
)

// otherPort returns the refusal of a target whose host the rules allow on other ports.
func otherPort(rules []Rule, t Target) error {
	why := refusalError{why: "the rules allow this host on other ports only", cause: OtherPort}
	if i := slices.IndexFunc(rules, func(r Rule) bool { return r.matches(Target{Name: t.Name, Addr: t.Addr}) }); i >= 0 {
		why.rule = rules[i].String()
	}
	return why
}

// addressRefused returns the refusal of an address. what completes "its address 10.0.0.1 is …".
func addressRefused(a netip.Addr, what string) error {
	return refusalError{why: fmt.Sprintf("its address %s is %s", a, what), cause: NotPublic}
}

// localName reports whether a name stands for the machine that resolves it.
func localName(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last == "localhost" || last == "localdomain" || strings.HasSuffix(name, "-localhost") ||
		strings.HasSuffix(name, "-loopback")
}

// checkAddress checks a target's address. own are the machine's addresses.
func (p *Policy) checkAddress(t Target, own []netip.Prefix) error {
	k, special := classOf(t.Addr)
	if (!special || k.exception == containingRange) && anyMatches(p.Registries, t) {
		return nil
	}
	if slices.ContainsFunc(p.Private, func(x Private) bool { return x.Host.matches(t) && x.allows(t.Addr, k) }) {
		return nil
	}
	switch {
	case len(own) == 0:
		return refusalError{why: "the server's own addresses are not known now", cause: AddressUnknown}
	case special:
		return addressRefused(t.Addr, k.what)
	}
	if what := describeOwn(t.Addr, own); what != "" {
		return addressRefused(t.Addr, what)
	}
	return nil
}

// check checks a target's name and address. A target without an address is resolved by the
// operator's proxy, which is only done for listed names.
func (p *Policy) check(t Target, own []netip.Prefix) error {
	if err := p.checkName(t); err != nil {
		return err
	}
	if t.Addr.IsValid() {
		return p.checkAddress(t, own)
	}
	if !p.listed(t) {
		return noRule
	}
	return nil
}
