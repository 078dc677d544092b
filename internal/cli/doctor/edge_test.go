package doctor

import (
	"strings"
	"testing"

	"sandlot/internal/auth"
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

// The redirect addresses to register are those that browsers send.
func TestDoctorOnRedirects(t *testing.T) {
	const issuer = "https://login.example.test"
	at := "/console/oidc/" + auth.IssuerID(issuer)
	for _, c := range []struct {
		host, url string
		tls       config.TLS
		want      []string
	}{
		{"127.0.0.1", "", config.TLS{}, []string{"http://console.localhost:8000", "http://localhost:8000"}},
		{"127.0.0.1", "", config.TLS{CertFile: "c", KeyFile: "k"}, []string{"https://localhost:8000"}},
		{"127.0.0.1", "https://sandlot.example.test", config.TLS{}, []string{"https://sandlot.example.test"}},
		{"0.0.0.0", "https://sandlot.example.test", config.TLS{}, []string{"https://sandlot.example.test"}},
		{"0.0.0.0", "", config.TLS{}, nil},
	} {
		var said []Check
		e := &examination{config: &config.Config{Server: config.Server{Host: c.host, Port: 8000, PublicURL: c.url, TLS: c.tls,
			Console: true}}, tell: func(c Check) { said = append(said, c) }}
		e.checkProvider(config.OIDC{Issuer: issuer, ClientID: "sandlot"})
		want := strings.Join(c.want, at+" and ") + at + ", and " + strings.Join(c.want, "/console/ and ") + "/console/ to come"
		if c.want == nil {
			want = "nobody can log in at " + issuer
		}
		if len(said) != 1 || !strings.Contains(said[0].Detail, want) || said[0].Note != (c.want == nil) {
			t.Errorf("%s, %q: %+v, want %s", c.host, c.url, said, want)
		}
	}
}
