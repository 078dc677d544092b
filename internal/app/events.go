package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sandlot/internal/api/metric"
	"sandlot/internal/audit"
	"sandlot/internal/fault"
	"sandlot/internal/telemetry"
)

// The exported file of events is renamed when it has eventFileBytes bytes, and eventFiles earlier files are kept.
const (
	eventFileBytes = 64 << 20
	eventFiles     = 8
)

// openTelemetry makes the exporter of telemetry observe events from now on, if there is a collector.
func (a *App) openTelemetry(ctx context.Context) (err error) {
	t := &a.Config.Telemetry
	if t.Endpoint == "" {
		return nil
	}
	a.telemetry, err = telemetry.New(ctx, telemetry.Config{Endpoint: t.Endpoint, Headers: t.Headers, Version: Version,
		Log: a.log})
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "telemetry.otlp_endpoint %s cannot be used: %v", t.Endpoint, err)
	}
	a.events.ObserveBy(a.telemetry.Observe)
	return nil
}

// sendTelemetry sends telemetry, with these metrics, until the server is closed.
func (a *App) sendTelemetry(m *metric.Metrics) error {
	if a.telemetry == nil {
		return nil
	}
	for s, name := range telemetry.SignalNames {
		m.CountLostTelemetry(name, func() uint64 { return a.telemetry.Lost(telemetry.Signal(s)) })
	}
	if err := a.telemetry.UseMetrics(m.Registry); err != nil {
		return err
	}
	a.inBackground(a.telemetry.Run)
	return nil
}

// inBackground runs run until the server is closed.
func (a *App) inBackground(run func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	a.closers = append(a.closers, func() error {
		stop()
		running.Wait()
		return nil
	})
}

// recordEvents stores events from now on, unless the settings say that they are only in memory.
func (a *App) recordEvents(ctx context.Context) error {
	c := &a.Config.Events
	if c.KeepMax == 0 {
		return nil
	}
	var file *audit.File
	if c.File != "" {
		file = audit.NewFile(c.File, eventFileBytes, eventFiles, a.log)
	}
	var err error
	a.recorder, err = audit.New(ctx, audit.Config{Store: a.store, Keep: c.KeepMax,
		KeepFor: time.Duration(c.KeepDays) * 24 * time.Hour, File: file, Log: a.log}, a.events)
	if err != nil {
		return fmt.Errorf("opening the stored events: %w", err)
	}
	a.inBackground(a.recorder.Run)
	return nil
}
