package doctor

import (
	"strings"
	"testing"

	"sandlot/internal/config"
)

// Without TLS, pages of exposed ports must not be on the console's site.
func TestDoctorOnTheConsole(t *testing.T) {
	for _, c := range []struct {
		url, ports string
		enabled    bool
		warns      bool
	}{
		{"http://sandlot.example.test:8000/x", "ports.example.test", true, true},
		{"http://sandlot.example.test:8000/x", "ports.example.test:8000", true, true},
		{"https://sandlot.example.test", "ports.example.test", true, false},
		{"http://sandlot.example.test", "ports.other.test", true, false},
		{"http://sandlot.example.test", "", true, false},
		{"", "ports.example.test", true, false},
		{"http://sandlot.example.test", "ports.example.test", false, false},
	} {
		said := ""
		e := &examination{config: &config.Config{Server: config.Server{PublicURL: c.url, PortsDomain: c.ports,
			Console: c.enabled}}, tell: func(c Check) {
			if said = c.Detail; !c.OK || !c.Note {
				t.Errorf("%+v", c)
			}
		}}
		if e.checkConsole(); strings.Contains(said, "without TLS") != c.warns {
			t.Errorf("%+v: %q", c, said)
		}
	}
}
