// Package telemetry sends traces, metrics and logs to an OpenTelemetry collector, over
// OTLP/HTTP. It makes them of events. A collector that hangs, lies or is away costs nothing but
// the telemetry, whose loss is counted.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Config configures an Exporter.
type Config struct {
	Endpoint string            // URL of the collector, without /v1/traces
	Headers  map[string]string // of each request to the collector; they may have secrets
	Version  string            // of the server
	Log      *slog.Logger
}

// Bounds and intervals of the exporter.
const (
	// maxQueue events wait to be sent at most: more are lost. They take less than 3 MB.
	maxQueue = 4096
	// batchSize events are sent at once, flushInterval after the first one at the latest.
	batchSize     = 512
	flushInterval = time.Second
	// metricInterval is the time between two exports of the metrics.
	metricInterval = 30 * time.Second
	// exportTimeout bounds one request to the collector, with its repetitions.
	exportTimeout = 10 * time.Second
	// closeTimeout bounds the export of the last telemetry.
	closeTimeout = 3 * time.Second
	// maxResponse is the largest answer of the collector that is read, in bytes.
	maxResponse = 64 << 10
)

// Signal is a kind of telemetry.
type Signal int

// The signals.
const (
	Traces Signal = iota
	Logs
	Metrics
	numSignals
)

// SignalNames are the names of the signals in metrics.
var SignalNames = [numSignals]string{"traces", "logs", "metrics"}

// Exporter exports the events that it observes.
type Exporter struct {
	config  Config
	client  *http.Client
	of      *resource.Resource
	scope   scope
	spans   *otlptrace.Exporter
	logs    *otlploghttp.Exporter
	metrics *otlpmetrichttp.Exporter
	reader  *sdkmetric.ManualReader

	mu    sync.Mutex // guards queue
	queue []event.Event
	wake  chan struct{}

	lost    [numSignals]atomic.Uint64
	failing [numSignals]bool // only Run uses it
}

// name is the name of the instrumentation and of the service.
const name = "sandlot"

// New returns an exporter. It observes from now on, makes no requests before Run, and Run needs
// UseMetrics.
func New(ctx context.Context, c Config) (*Exporter, error) {
	x := &Exporter{config: c, wake: make(chan struct{}, 1)}
	x.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: exportTimeout,
		// A redirect would send telemetry, and the headers, to somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if err := x.openExporters(ctx); err != nil {
		return nil, err
	}
	of := resource.NewSchemaless(attribute.String("service.name", name), attribute.String("service.version", c.Version),
		attribute.String("service.instance.id", secret.ID()))
	spans := sdktrace.NewTracerProvider(sdktrace.WithResource(of), sdktrace.WithSpanProcessor(&x.scope.spans))
	logs := sdklog.NewLoggerProvider(sdklog.WithResource(of), sdklog.WithProcessor(&x.scope.records))
	x.scope.tracer, x.scope.logger, x.of = spans.Tracer(name), logs.Logger(name), of
	return x, nil
}

// UseMetrics also exports these metrics.
func (x *Exporter) UseMetrics(metrics prometheus.Gatherer) (err error) {
	x.reader = sdkmetric.NewManualReader(sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(metrics))))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithResource(x.of), sdkmetric.WithReader(x.reader))
	x.scope.duration, err = provider.Meter(name).Float64Histogram("mcp.server.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Duration of MCP requests."),
		metric.WithExplicitBucketBoundaries(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
			10, 30, 60, 300))
	return err
}

// openExporters makes the exporters of the three signals.
func (x *Exporter) openExporters(ctx context.Context) (err error) {
	c := &x.config
	const first, most, all = time.Second, 4 * time.Second, 8 * time.Second
	if x.spans, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.Endpoint+"/v1/traces"),
		otlptracehttp.WithHeaders(c.Headers), otlptracehttp.WithHTTPClient(x.client),
		otlptracehttp.WithMaxResponseSize(maxResponse), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true,
			InitialInterval: first, MaxInterval: most, MaxElapsedTime: all})); err != nil {
		return err
	}
	if x.logs, err = otlploghttp.New(ctx, otlploghttp.WithEndpointURL(c.Endpoint+"/v1/logs"),
		otlploghttp.WithHeaders(c.Headers), otlploghttp.WithHTTPClient(x.client),
		otlploghttp.WithMaxResponseSize(maxResponse), otlploghttp.WithRetry(otlploghttp.RetryConfig{Enabled: true,
			InitialInterval: first, MaxInterval: most, MaxElapsedTime: all})); err != nil {
		return err
	}
	x.metrics, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(c.Endpoint+"/v1/metrics"),
		otlpmetrichttp.WithHeaders(c.Headers), otlpmetrichttp.WithHTTPClient(x.client),
		otlpmetrichttp.WithMaxResponseSize(maxResponse), otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{
			Enabled: true, InitialInterval: first, MaxInterval: most, MaxElapsedTime: all}))
	return err
}

// Observe queues an event. It does not wait.
func (x *Exporter) Observe(e event.Event) {
	x.mu.Lock()
	n := len(x.queue)
	if n < maxQueue {
		x.queue = append(x.queue, e)
	}
	x.mu.Unlock()
	switch {
	case n >= maxQueue:
		x.lost[Logs].Add(1)
		if isSpan(&e) {
			x.lost[Traces].Add(1)
		}
	case n == 0 || n == batchSize:
		select {
		case x.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// Lost returns how much telemetry could not be sent: spans, log records, and exports of metrics.
func (x *Exporter) Lost(s Signal) uint64 { return x.lost[s].Load() }

// Run sends telemetry until ctx ends, and then the rest.
func (x *Exporter) Run(ctx context.Context) {
	defer x.client.CloseIdleConnections()
	metrics := time.NewTicker(metricInterval)
	defer metrics.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			x.flush(last)
			x.sendMetrics(last)
			return
		case <-metrics.C:
			x.sendMetrics(ctx)
		case <-x.wake:
			x.gather(ctx)
			if ctx.Err() == nil { // otherwise the rest is sent above
				x.flush(ctx)
			}
		}
	}
}

// gather waits for more events to send with the first one.
func (x *Exporter) gather(ctx context.Context) {
	timer := time.NewTimer(flushInterval)
	defer timer.Stop()
	for x.waiting() < batchSize {
		select {
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-x.wake:
		}
	}
}

func (x *Exporter) waiting() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.queue)
}

// flush sends the queued events.
func (x *Exporter) flush(ctx context.Context) {
	for {
		x.mu.Lock()
		batch := x.queue[:min(len(x.queue), batchSize)]
		if x.queue = x.queue[len(batch):]; len(x.queue) == 0 {
			x.queue = nil
		}
		x.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			x.scope.add(&batch[i])
		}
		spans, records := x.scope.spans.take(), x.scope.records.take()
		if len(spans) > 0 {
			x.send(ctx, Traces, len(spans), func(ctx context.Context) error { return x.spans.ExportSpans(ctx, spans) })
		}
		x.send(ctx, Logs, len(records), func(ctx context.Context) error { return x.logs.Export(ctx, records) })
	}
}

func (x *Exporter) sendMetrics(ctx context.Context) {
	x.send(ctx, Metrics, 1, func(ctx context.Context) error {
		var all metricdata.ResourceMetrics
		if err := x.reader.Collect(ctx, &all); err != nil {
			return err
		}
		return x.metrics.Export(ctx, &all)
	})
}

// send makes one request with n items. If it fails, they are lost. A failure is logged once, until a
// request of the signal succeeds again.
func (x *Exporter) send(ctx context.Context, s Signal, n int, export func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	err := export(ctx)
	if err != nil {
		x.lost[s].Add(uint64(n))
	}
	signal := SignalNames[s]
	switch {
	case err != nil && !x.failing[s] && !errors.Is(err, context.Canceled):
		x.config.Log.Warn("telemetry cannot be sent, and is lost until the collector answers again", "signal", signal,
			"error", fault.Printable(err.Error(), 500))
	case err == nil && x.failing[s]:
		x.config.Log.Info("telemetry is sent again", "signal", signal, "lost", x.Lost(s))
	}
	x.failing[s] = err != nil
}
