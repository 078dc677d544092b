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

// Refused is a host that a session's programs were not allowed to reach.
type Refused struct {
	Host   string `json:"host" jsonschema:"Name or address."`
	Port   int    `json:"port" jsonschema:"0 when it was only looked up."`
	Reason string `json:"reason" jsonschema:"Why."`
	Times  int    `json:"times" jsonschema:"How often."`
}

// refused adds a text to a result on the hosts that the session's programs were not allowed to reach
// since the previous result, and on how the operator can allow them. It returns them as fields.
func refused(l *session.Lease, r *tool.Result) []Refused {
	list := l.Refusals()
	if len(list) == 0 {
		return nil
	}
	var lines, rules []string
	remedies := map[egress.Remedy]bool{}
	var data []Refused
	for _, e := range list {
		host := hostPort(e)
		lines = append(lines, fmt.Sprintf("Network access refused: %s: %s", host, fault.Printable(e.Reason, 300)))
		remedies[e.Remedy()] = true
		if e.Remedy() == egress.ARule {
			rules = append(rules, host)
		}
		data = append(data, Refused{Host: fault.Printable(e.Host, 260), Port: int(e.Port),
			Reason: fault.Printable(e.Reason, 300), Times: e.Times})
	}
	if len(rules) > 0 {
		lines = append(lines, fmt.Sprintf("The operator of this server can allow it: network.allow in sandlot.yaml, "+
			"or `sandlot network allow %s --session %s`.",
			strings.Join(rules, " "), l.ID()))
	}
	if remedies[egress.AnException] {
		lines = append(lines, "Addresses that are not public can be allowed by the operator of this server alone, "+
			"with name and range: network.allow_private in sandlot.yaml.")
	}
	if remedies[egress.AMode] {
		lines = append(lines, fmt.Sprintf("The operator of this server can give this session a network: `sandlot "+
			"network mode allowlist --session %s`.", l.ID()))
	}
	if remedies[egress.MoreBytes] {
		lines = append(lines, fmt.Sprintf("Another session (session_id \"new\") has as much for itself. The operator "+
			"of this server can give this one more: `sandlot network recount --session %s`, or network.max_mb in "+
			"sandlot.yaml.", l.ID()))
	}
	r.Content = append(r.Content, tool.Text(strings.Join(lines, "\n")))
	return data
}

func hostPort(e egress.Refusal) string {
	host := fault.Printable(e.Host, 260)
	if e.Port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
}
