package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"sandlot/internal/event"
)

// scope makes telemetry of events, and collects it.
type scope struct {
	tracer   trace.Tracer
	logger   log.Logger
	duration metric.Float64Histogram
	spans    spanCollector
	records  recordCollector
}

// toolsCall is the MCP method that calls a tool.
const toolsCall = "tools/call"

// isSpan reports whether an event is the end of a call, of which a span is made.
func isSpan(e *event.Event) bool { return e.Kind == event.Call && e.Outcome != event.Started }

// add makes a log record of an event, and a span and a measurement of the end of a call.
func (s *scope) add(e *event.Event) {
	ctx := context.Background()
	all := attributes(e)
	if isSpan(e) {
		ctx = s.addSpan(ctx, e, all)
	}
	var r log.Record
	r.SetTimestamp(e.Time)
	r.SetObservedTimestamp(e.Time)
	r.SetEventName("sandlot." + string(e.Kind))
	r.SetBody(attribute.StringValue(e.Operation + " " + e.Outcome))
	r.SetSeverity(log.SeverityInfo)
	if errorType(e) != "" {
		r.SetSeverity(log.SeverityWarn)
	}
	r.SetSeverityText(r.Severity().String())
	r.AddAttributes(all...)
	s.logger.Emit(ctx, r)
}

// addSpan makes a span of a call, and returns a context with it.
func (s *scope) addSpan(ctx context.Context, e *event.Event, all []attribute.KeyValue) context.Context {
	if e.Trace != "" { // a text that is no traceparent gives no parent
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": e.Trace})
	}
	name := e.Operation
	if e.Method != "" {
		name = e.Method
		if e.Method == toolsCall && e.Name != "" {
			name += " " + e.Name
		}
		measured := []attribute.KeyValue{attribute.String("mcp.method.name", e.Method)}
		if failed := errorType(e); failed != "" {
			measured = append(measured, attribute.String("error.type", failed))
		}
		s.duration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(measured...))
	}
	ctx, span := s.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(e.Time.Add(-e.Duration)), trace.WithAttributes(all...))
	if errorType(e) != "" {
		span.SetStatus(codes.Error, e.Outcome)
	}
	span.End(trace.WithTimestamp(e.Time))
	return ctx
}

// errorType returns the error.type of an event; empty: it is no error.
func errorType(e *event.Event) string {
	switch {
	case e.Outcome == event.Error:
		return "tool_error" // the convention's value for a result with isError
	case e.Kind == event.Call && e.Outcome != event.OK && e.Outcome != event.Started && e.Outcome != event.Replayed:
		return e.Outcome
	}
	return ""
}

// attributes returns the attributes of an event. Their names come from the semantic conventions for
// MCP, and sandlot.… where these have none.
func attributes(e *event.Event) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String("sandlot.operation", e.Operation),
		attribute.String("sandlot.outcome", e.Outcome), attribute.String("user.id", e.Principal)}
	text := func(name, value string) {
		if value != "" {
			all = append(all, attribute.String(name, value))
		}
	}
	number := func(name string, value int64) {
		if value != 0 {
			all = append(all, attribute.Int64(name, value))
		}
	}
	text("sandlot.session.id", e.Session)
	text("sandlot.token.id", e.Token)
	text("sandlot.service", e.Service)
	text("mcp.method.name", e.Method)
	text("mcp.session.id", e.ClientSession)
	text("error.type", errorType(e))
	if e.Address == event.Socket {
		text("network.transport", "unix")
	} else {
		text("client.address", e.Address)
	}
	if e.Method == toolsCall && e.Name != "" {
		text("gen_ai.operation.name", "execute_tool")
		text("gen_ai.tool.name", e.Name)
	} else {
		text("sandlot.target", e.Name)
	}
	number("sandlot.request.size", e.RequestBytes)
	number("sandlot.answer.size", e.AnswerBytes)
	number("sandlot.count", int64(e.Count))
	text("sandlot.refused.cause", e.Refused.Cause)
	text("sandlot.refused.rule", e.Refused.Rule)
	text("sandlot.refused.question", e.Refused.Question)
	text("process.executable.name", e.Refused.Program)
	if e.Offers != (event.Offers{}) {
		all = append(all, attribute.Int("sandlot.server.tools", e.Offers.Tools),
			attribute.Int("sandlot.server.prompts", e.Offers.Prompts),
			attribute.Int("sandlot.server.resources", e.Offers.Resources))
	}
	return all
}

// spanCollector collects the spans that end. Only one goroutine uses it.
type spanCollector struct{ ended []sdktrace.ReadOnlySpan }

// take returns the spans since the last call.
func (c *spanCollector) take() []sdktrace.ReadOnlySpan {
	ended := c.ended
	c.ended = nil
	return ended
}

// OnStart implements sdktrace.SpanProcessor.
func (c *spanCollector) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (c *spanCollector) OnEnd(s sdktrace.ReadOnlySpan) { c.ended = append(c.ended, s) }

// Shutdown implements sdktrace.SpanProcessor.
func (c *spanCollector) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (c *spanCollector) ForceFlush(context.Context) error { return nil }

// recordCollector collects log records. Only one goroutine uses it.
type recordCollector struct{ records []sdklog.Record }

// take returns the records since the last call.
func (c *recordCollector) take() []sdklog.Record {
	records := c.records
	c.records = nil
	return records
}

// Enabled implements sdklog.Processor.
func (c *recordCollector) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }

// OnEmit implements sdklog.Processor.
func (c *recordCollector) OnEmit(_ context.Context, r *sdklog.Record) error {
	c.records = append(c.records, r.Clone())
	return nil
}

// Shutdown implements sdklog.Processor.
func (c *recordCollector) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdklog.Processor.
func (c *recordCollector) ForceFlush(context.Context) error { return nil }
