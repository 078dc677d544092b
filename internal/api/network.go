package api

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// sessionNetwork shows what a session may reach.
func (s *Server) sessionNetwork(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	n, err := hub.ReadSessionNetwork.Do(r.Context(), s.Hub, p, hub.SessionID(r.PathValue("id")))
	respond(w, r, http.StatusOK, n, err)
}

// network shows what holds for all sessions.
func (s *Server) network(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	n, err := hub.ReadNetwork.Do(r.Context(), s.Hub, p, hub.None{})
	respond(w, r, http.StatusOK, n, err)
}

func (s *Server) changeNetwork(w http.ResponseWriter, r *http.Request) {
	var c hub.NetworkChange
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	body.DisallowUnknownFields()
	if err := body.Decode(&c); err != nil {
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with mode, allow, deny, reset or recount: %v", err))
		return
	}
	p, _ := auth.From(r.Context())
	c.SessionID = hub.SessionID(r.PathValue("id"))
	n, err := hub.ChangeNetwork.Do(r.Context(), s.Hub, p, c)
	respond(w, r, http.StatusOK, n, err)
}

// Network counts what sandboxes did with the network.
func (m *Metrics) Network(totals func() hub.NetworkUsage) {
	counter := func(name, help string, labels prometheus.Labels, value func(hub.NetworkUsage) uint64) {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(totals())) }))
	}
	for verdict, value := range map[string]func(hub.NetworkUsage) uint64{
		"ok":          func(u hub.NetworkUsage) uint64 { return u.Connected },
		"refused":     func(u hub.NetworkUsage) uint64 { return u.Refused },
		"unreachable": func(u hub.NetworkUsage) uint64 { return u.Unreachable },
		"busy":        func(u hub.NetworkUsage) uint64 { return u.Busy },
		"broken":      func(u hub.NetworkUsage) uint64 { return u.Broken },
	} {
		counter("sandlot_network_connections_total", "Connections that sandboxes asked for, by verdict.", prometheus.Labels{"verdict": verdict}, value)
	}
	counter("sandlot_network_bytes_total", "Bytes that sandboxes sent and received.", prometheus.Labels{"direction": "sent"}, func(u hub.NetworkUsage) uint64 { return u.Up })
	counter("sandlot_network_bytes_total", "Bytes that sandboxes sent and received.", prometheus.Labels{"direction": "received"}, func(u hub.NetworkUsage) uint64 { return u.Down })
	counter("sandlot_network_lookups_total", "Names that sandboxes looked up.", nil, func(u hub.NetworkUsage) uint64 { return u.Lookups })
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandlot_network_connections_open", Help: "Connections of sandboxes now."},
		func() float64 { return float64(totals().Open) }))
}
