package config

import (
	"strings"
	"testing"
)

// No error about the headers for a collector has their values.
func TestTelemetryHeadersAreNotShown(t *testing.T) {
	for _, value := range []string{"hunter2", "hunter2 2=x"} {
		_, err := Load(Source{Env: map[string]string{"SANDLOT_TELEMETRY_OTLP_HEADERS": value}})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", value, err)
		}
	}
}
