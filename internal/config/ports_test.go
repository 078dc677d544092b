package config

import (
	"strings"
	"testing"
)

func TestPortsDomain(t *testing.T) {
	for _, good := range []string{"ports.example.com", "ports.example.com:8443", "https://ports.example.com"} {
		if c, err := load(t, "ports_domain: "+good, nil, nil); err != nil || c.Server.PortsDomain != good {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"*.example.com", "https://example.com/path", "10.0.0.1", "a b"} {
		if _, err := load(t, "", vars{"SANDLOT_PORTS_DOMAIN": bad}, nil); err == nil ||
			!strings.Contains(err.Error(), "SANDLOT_PORTS_DOMAIN") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
