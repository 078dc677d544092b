package reason

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
)

// RefusedHost is a host that a session's programs were not allowed to reach.
type RefusedHost struct {
	Host       string `json:"host" jsonschema:"Name or address."`
	Port       int    `json:"port" jsonschema:"0 when it was only looked up."`
	Reason     string `json:"reason" jsonschema:"Why."`
	Cause      string `json:"cause" jsonschema:"Why, in a word for programs, such as not_listed."`
	Rule       string `json:"rule,omitempty" jsonschema:"The rule that decided, or its place in the settings."`
	Program    string `json:"program,omitempty" jsonschema:"The name of the process, if it is known."`
	PID        int    `json:"pid,omitempty" jsonschema:"Its id in the sandbox."`
	ProcessID  string `json:"process_id,omitempty" jsonschema:"The background process to which it belongs."`
	QuestionID string `json:"question_id,omitempty" jsonschema:"The question that a person was asked about it."`
	Times      int    `json:"times" jsonschema:"How often."`
}

// RefusedHosts is what users are told of refused connections.
type RefusedHosts struct {
	Hosts  []RefusedHost
	Advice string // how the operator can allow them; empty: there is none
	Text   string // all of it; empty: nothing was refused
}

// Refusals returns what users are told of refused connections.
func Refusals(list []egress.Refusal) (r RefusedHosts) {
	var lines, advice, sessions []string
	rules := map[string][]string{} // that are missing, by session
	remedies := map[egress.Remedy]string{}
	for _, x := range list {
		host := hostPort(x)
		lines = append(lines, fmt.Sprintf("Network access refused: %s: %s", host, fault.Printable(x.Reason, 300)))
		remedies[x.Remedy()] = x.Session
		if x.Remedy() == egress.AddRule {
			if rules[x.Session] == nil {
				sessions = append(sessions, x.Session)
			}
			rules[x.Session] = append(rules[x.Session], host)
		}
		h := RefusedHost{Host: fault.Printable(x.Host, 260), Port: int(x.Port), Reason: fault.Printable(x.Reason, 300),
			Cause: string(x.Cause), Rule: fault.Printable(x.Rule, 300), Program: x.Program.Name, PID: x.Program.PID,
			QuestionID: x.Question, Times: x.Times}
		if x.Program.Process != "" && x.Session != "" {
			h.ProcessID = x.Session + "." + x.Program.Process
		}
		r.Hosts = append(r.Hosts, h)
	}
	for _, session := range sessions {
		advice = append(advice, fmt.Sprintf("The operator of this server can allow it: network.allow in sandlot.yaml, "+
			"or `sandlot network allow %s --session %s`.", strings.Join(rules[session], " "), session))
	}
	if _, ok := remedies[egress.AddException]; ok {
		advice = append(advice, "Addresses that are not public can be allowed by the operator of this server alone, "+
			"with name and range: network.allow_private in sandlot.yaml.")
	}
	if session, ok := remedies[egress.ChangeMode]; ok {
		advice = append(advice, fmt.Sprintf("The operator of this server can give this session a network: `sandlot "+
			"network mode allowlist --session %s`.", session))
	}
	if session, ok := remedies[egress.RaiseByteLimit]; ok {
		advice = append(advice, fmt.Sprintf("Another session (session_id \"new\") has as much for itself. The "+
			"operator of this server can give this one more: `sandlot network recount --session %s`, or "+
			"network.max_mb in sandlot.yaml.", session))
	}
	if _, ok := remedies[egress.RaiseDayQuota]; ok {
		advice = append(advice, "The next day begins at 00:00 UTC. The operator of this server can raise "+
			"traffic_mb_per_day in the section quotas of sandlot.yaml.")
	}
	r.Advice, r.Text = strings.Join(advice, "\n"), strings.Join(append(lines, advice...), "\n")
	return r
}

func hostPort(r egress.Refusal) string {
	host := fault.Name(r.Host, 260)
	if r.Port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(r.Port)))
}
