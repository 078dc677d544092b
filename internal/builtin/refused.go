package builtin

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// RefusedHost is a host that a session's programs were not allowed to reach.
type RefusedHost struct {
	Host   string `json:"host" jsonschema:"Name or address."`
	Port   int    `json:"port" jsonschema:"0 when it was only looked up."`
	Reason string `json:"reason" jsonschema:"Why."`
	Times  int    `json:"times" jsonschema:"How often."`
}

// addRefusals adds a text to a result on the hosts that the session's programs were not allowed to reach
// since the previous result, and on how the operator can allow them. It returns both as fields.
func addRefusals(l *session.Lease, r *tool.Result) ([]RefusedHost, string) {
	refusals := l.Refusals()
	if len(refusals) == 0 {
		return nil, ""
	}
	var lines, advice, rules []string
	remedies := map[egress.Remedy]bool{}
	var hosts []RefusedHost
	for _, refusal := range refusals {
		host := hostPort(refusal)
		lines = append(lines, fmt.Sprintf("Network access refused: %s: %s", host, fault.Printable(refusal.Reason, 300)))
		remedies[refusal.Remedy()] = true
		if refusal.Remedy() == egress.AddRule {
			rules = append(rules, host)
		}
		hosts = append(hosts, RefusedHost{Host: fault.Printable(refusal.Host, 260), Port: int(refusal.Port),
			Reason: fault.Printable(refusal.Reason, 300), Times: refusal.Times})
	}
	if len(rules) > 0 {
		advice = append(advice, fmt.Sprintf("The operator of this server can allow it: network.allow in sandlot.yaml, "+
			"or `sandlot network allow %s --session %s`.",
			strings.Join(rules, " "), l.ID()))
	}
	if remedies[egress.AddException] {
		advice = append(advice, "Addresses that are not public can be allowed by the operator of this server alone, "+
			"with name and range: network.allow_private in sandlot.yaml.")
	}
	if remedies[egress.ChangeMode] {
		advice = append(advice, fmt.Sprintf("The operator of this server can give this session a network: `sandlot "+
			"network mode allowlist --session %s`.", l.ID()))
	}
	if remedies[egress.RaiseByteLimit] {
		advice = append(advice, fmt.Sprintf("Another session (session_id \"new\") has as much for itself. The "+
			"operator of this server can give this one more: `sandlot network recount --session %s`, or "+
			"network.max_mb in sandlot.yaml.", l.ID()))
	}
	if remedies[egress.RaiseDayQuota] {
		advice = append(advice, "The next day begins at 00:00 UTC. The operator of this server can raise "+
			"traffic_mb_per_day in the section quotas of sandlot.yaml.")
	}
	r.Content = append(r.Content, tool.Text(strings.Join(append(lines, advice...), "\n")))
	return hosts, strings.Join(advice, "\n")
}

func hostPort(e egress.Refusal) string {
	host := fault.Name(e.Host, 260)
	if e.Port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
}
