// Package metric has the metrics that Prometheus reads.
package metric

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"sandlot/internal/hub"
)

// Metrics has the metrics for Prometheus.
type Metrics struct {
	Registry *prometheus.Registry
	requests *prometheus.CounterVec
	calls    *prometheus.HistogramVec
}

// New returns the metrics. live and pool are called at each scrape.
func New(liveSessions func() int, pool func() map[string]int, templates []string) *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry()}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandlot_http_requests_total",
		Help: "HTTP requests by method and status."}, []string{"method", "status"})
	m.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sandlot_tool_call_seconds",
		Help:    "Tool calls by tool and outcome (ok, error, or a fault's code).",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)}, []string{"tool", "outcome"})
	m.Registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.requests, m.calls)
	m.gauge("sandlot_sessions_live", "Sessions that have a sandbox.", nil, liveSessions)
	for _, t := range templates {
		m.gauge("sandlot_pool_ready", "Booted sandboxes in the pool.", prometheus.Labels{"template": t},
			func() int { return pool()[t] })
	}
	return m
}

func (m *Metrics) gauge(name, help string, labels prometheus.Labels, value func() int) {
	opts := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}
	m.Registry.MustRegister(prometheus.NewGaugeFunc(opts, func() float64 { return float64(value()) }))
}

// counter registers a counter with one label and its value; label "": without a label.
func (m *Metrics) counter(name, help, label, labelValue string, value func() uint64) {
	opts := prometheus.CounterOpts{Name: name, Help: help}
	if label != "" {
		opts.ConstLabels = prometheus.Labels{label: labelValue}
	}
	m.Registry.MustRegister(prometheus.NewCounterFunc(opts, func() float64 { return float64(value()) }))
}

// CountStarts registers the counter of started sandboxes, which started returns at each scrape.
func (m *Metrics) CountStarts(started func() (prebooted, booted int64)) {
	const name = "sandlot_sandboxes_started_total"
	const help = "Sandboxes that were started, from a snapshot or by booting."
	m.counter(name, help, "from", "snapshot", func() uint64 { prebooted, _ := started(); return uint64(prebooted) })
	m.counter(name, help, "from", "boot", func() uint64 { _, booted := started(); return uint64(booted) })
}

// CountNetwork registers the counters of the sandboxes' network, which totals returns at each scrape.
func (m *Metrics) CountNetwork(totals func() hub.NetworkUsage) {
	for verdict := range verdicts(hub.NetworkUsage{}) {
		m.counter("sandlot_network_connections_total", "Connections that sandboxes asked for, by verdict.", "verdict",
			verdict, func() uint64 { return verdicts(totals())[verdict] })
	}
	const moved, help = "sandlot_network_bytes_total", "Bytes that sandboxes sent and received."
	m.counter(moved, help, "direction", "sent", func() uint64 { return totals().Up })
	m.counter(moved, help, "direction", "received", func() uint64 { return totals().Down })
	m.counter("sandlot_network_lookups_total", "Names that sandboxes looked up.", "", "",
		func() uint64 { return totals().Lookups })
	m.gauge("sandlot_network_connections_open", "Connections of sandboxes now.", nil,
		func() int { return int(totals().Open) })
}

// CountEvents registers the counters of stored events, which stats returns at each scrape.
func (m *Metrics) CountEvents(stats func() hub.EventStats) {
	m.counter("sandlot_events_stored_total", "Events that were stored.", "", "",
		func() uint64 { return stats().Stored })
	m.counter("sandlot_events_lost_total", "Events that could not be stored.", "", "",
		func() uint64 { return stats().Lost })
	m.gauge("sandlot_events_waiting", "Events that wait to be stored.", nil, func() int { return stats().Waiting })
}

// CountLostTelemetry registers the counter of one signal's telemetry that could not be sent.
func (m *Metrics) CountLostTelemetry(signal string, lost func() uint64) {
	m.counter("sandlot_telemetry_lost_total", "Spans, log records and exports of metrics that could not be sent.",
		"signal", signal, lost)
}

// verdicts are the numbers of connections that sandboxes asked for, by verdict.
func verdicts(u hub.NetworkUsage) map[string]uint64 {
	return map[string]uint64{"ok": u.Connected, "refused": u.Refused, "unreachable": u.Unreachable, "busy": u.Busy,
		"broken": u.Broken}
}

// External is the label value of all tools of third-party servers: their names are
// private to their users, and their number is not bounded.
const External = "ext"

// Call counts one call of a built-in tool, or of External.
func (m *Metrics) Call(tool, outcome string, took time.Duration) {
	m.calls.WithLabelValues(tool, outcome).Observe(took.Seconds())
}

// Request counts one HTTP request.
func (m *Metrics) Request(by string, code int) {
	m.requests.WithLabelValues(method(by), status(code)).Inc()
}

// method returns the label for a method: clients may send any, and labels must be few.
func method(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS":
		return m
	}
	return "other"
}

// status returns the label for a status code: programs in sandboxes may send any.
func status(code int) string {
	if http.StatusText(code) == "" {
		return "other"
	}
	return strconv.Itoa(code)
}
