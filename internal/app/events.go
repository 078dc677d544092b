package app

import (
	"context"
	"fmt"
	"time"

	"sandlot/internal/api/metric"
	"sandlot/internal/audit"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/store"
	"sandlot/internal/telemetry"
)

// The exported file of events is renamed when it has eventFileBytes bytes, and eventFiles earlier files are kept.
const (
	eventFileBytes = 64 << 20
	eventFiles     = 8
)

// openTelemetry makes the exporter of telemetry observe events from now on; nil: there is no collector.
func (m maker) openTelemetry(ctx context.Context, events *event.Stream) (*telemetry.Exporter, error) {
	t := &m.c.Telemetry
	if t.Endpoint == "" {
		return nil, nil
	}
	e, err := telemetry.New(ctx, telemetry.Config{Endpoint: t.Endpoint, Headers: t.Headers, Version: Version, Log: m.log})
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "telemetry.otlp_endpoint %s cannot be used: %v", t.Endpoint, err)
	}
	events.ObserveBy(e.Observe)
	return e, nil
}

// sendTelemetry sends telemetry, with these metrics, until the server is closed.
func (m maker) sendTelemetry(e *telemetry.Exporter, metrics *metric.Metrics) error {
	if e == nil {
		return nil
	}
	for s, name := range telemetry.SignalNames {
		metrics.CountLostTelemetry(name, func() uint64 { return e.Lost(telemetry.Signal(s)) })
	}
	if err := e.UseMetrics(metrics.Registry); err != nil {
		return err
	}
	m.closing.background(e.Run)
	return nil
}

// recordEvents stores events from now on; nil: the settings say that they are only in memory.
func (m maker) recordEvents(ctx context.Context, db *store.DB, events *event.Stream) (*audit.Recorder, error) {
	c := &m.c.Events
	if c.KeepMax == 0 {
		return nil, nil
	}
	var file *audit.File
	if c.File != "" {
		file = audit.NewFile(c.File, eventFileBytes, eventFiles, m.log)
	}
	r, err := audit.New(ctx, audit.Config{Store: db, Keep: c.KeepMax,
		KeepFor: time.Duration(c.KeepDays) * 24 * time.Hour, File: file, Log: m.log}, events)
	if err != nil {
		return nil, fmt.Errorf("opening the stored events: %w", err)
	}
	m.closing.background(r.Run)
	return r, nil
}
