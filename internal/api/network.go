package api

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/session"
)

// NetworkChange is what the operator asks to change for one session.
type NetworkChange struct {
	Mode  *egress.Mode  `json:"mode,omitempty"`  // "": that of the settings again
	Allow []egress.Rule `json:"allow,omitempty"` // added
	Deny  []egress.Rule `json:"deny,omitempty"`  // no longer among those that were added
	Reset bool          `json:"reset,omitempty"` // first all is as in the settings again
	// Recount makes what the session moved count from nothing again.
	Recount bool `json:"recount,omitempty"`
}

// maxRules bounds what is added for one session.
const maxRules = 1000

func (c NetworkChange) check() error {
	if c.Mode != nil && *c.Mode != "" {
		if _, err := egress.ParseMode(string(*c.Mode)); err != nil || *c.Mode == egress.Open {
			return fault.New(fault.InvalidParameters, "mode %q must be none, allowlist or public", *c.Mode).With("argument", "mode")
		}
	}
	if len(c.Allow) > maxRules {
		return fault.New(fault.InvalidParameters, "allow has more than %d rules", maxRules).With("argument", "allow")
	}
	return nil
}

func (c NetworkChange) apply(to *session.Change) {
	if c.Reset {
		*to = session.Change{}
	}
	if c.Mode != nil {
		to.Mode = *c.Mode
	}
	for _, r := range c.Allow {
		if !slices.Contains(to.Allow, r) && len(to.Allow) < maxRules {
			to.Allow = append(to.Allow, r)
		}
	}
	to.Allow = slices.DeleteFunc(to.Allow, func(r egress.Rule) bool { return slices.Contains(c.Deny, r) })
}

// NetworkState is what holds for all sessions, and what they did.
type NetworkState struct {
	Policy    egress.Policy            `json:"policy"`
	Templates map[string]egress.Policy `json:"templates,omitempty"`
	Usage     egress.Usage             `json:"usage"`
	File      string                   `json:"settings_file,omitempty"` // whose changes are taken up
}

// sessionNetwork shows what one's own session may reach, and an operator's anyone's.
func (s *Server) sessionNetwork(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	n, err := s.Sessions.Network(p, r.PathValue("id"))
	if err != nil {
		problem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, n)
}

// allNetwork shows what holds for all sessions.
func (s *Server) allNetwork(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Network())
}

func (s *Server) changeNetwork(w http.ResponseWriter, r *http.Request) {
	var c NetworkChange
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	body.DisallowUnknownFields()
	if err := body.Decode(&c); err != nil {
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with mode, allow, deny, reset or recount: %v", err))
		return
	}
	err := c.check()
	if err == nil {
		p, _ := auth.From(r.Context())
		var n session.Network
		if n, err = s.Sessions.ChangeNetwork(r.Context(), p, r.PathValue("id"), c.apply); err == nil && c.Recount {
			n, err = s.Sessions.Recount(r.Context(), p, n.Session)
		}
		if err == nil {
			writeJSON(w, http.StatusOK, n)
			return
		}
	}
	problem(w, r, err)
}

// Network counts what sandboxes did with the network.
func (m *Metrics) Network(totals func() egress.Usage) {
	counter := func(name, help string, labels prometheus.Labels, value func(egress.Usage) uint64) {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(totals())) }))
	}
	for verdict, value := range map[string]func(egress.Usage) uint64{
		"ok":          func(u egress.Usage) uint64 { return u.Connected },
		"refused":     func(u egress.Usage) uint64 { return u.Refused },
		"unreachable": func(u egress.Usage) uint64 { return u.Unreachable },
		"busy":        func(u egress.Usage) uint64 { return u.Busy },
		"broken":      func(u egress.Usage) uint64 { return u.Broken },
	} {
		counter("sandlot_network_connections_total", "Connections that sandboxes asked for, by verdict.", prometheus.Labels{"verdict": verdict}, value)
	}
	counter("sandlot_network_bytes_total", "Bytes that sandboxes sent and received.", prometheus.Labels{"direction": "sent"}, func(u egress.Usage) uint64 { return u.Up })
	counter("sandlot_network_bytes_total", "Bytes that sandboxes sent and received.", prometheus.Labels{"direction": "received"}, func(u egress.Usage) uint64 { return u.Down })
	counter("sandlot_network_lookups_total", "Names that sandboxes looked up.", nil, func(u egress.Usage) uint64 { return u.Lookups })
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandlot_network_connections_open", Help: "Connections of sandboxes now."},
		func() float64 { return float64(totals().Open) }))
}
