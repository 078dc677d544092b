package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"sandlot/internal/app"
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/console"
	"sandlot/internal/plural"
)

// renewal is how long before its end a certificate is a warning.
const renewal = 7 * 24 * time.Hour

// checkCertificate checks the certificate of the settings, if there is one.
func (e *examination) checkCertificate(log *slog.Logger) {
	t := e.config.Server.TLS
	if len(t.Domains) > 0 {
		e.report(true, "tls", fmt.Sprintf("certificates for %s come from %s, when the first client connects",
			strings.Join(t.Domains, ", "), t.Directory))
		return
	}
	source := app.CertificateSource(e.config, log)
	if source == nil {
		return
	}
	end, names, err := source.Expires()
	left := time.Until(end)
	detail := fmt.Sprintf("the certificate is for %s, until %s", strings.Join(names, ", "), end.Format(time.DateTime))
	switch {
	case err != nil:
		e.fail("tls", err)
	case left <= 0:
		e.report(false, "tls", detail+": it has expired")
	case left < renewal:
		e.report(true, "tls", "WARNING: "+detail)
	default:
		e.report(true, "tls", detail)
	}
}

// checkConsole warns when nobody can log in at the web console.
func (e *examination) checkConsole() {
	s := &e.config.Server
	if !s.Console || s.PublicURL == "" {
		return
	}
	if err := console.CheckSite(s.PublicURL, s.PortsDomain); err != nil {
		e.tell(Check{Name: "console", OK: true, Note: true, Detail: err.Error(), Remedy: remedies["console"]})
	}
}

// checkProvider says what has to be registered at an issuer where users log in in the browser.
func (e *examination) checkProvider(o config.OIDC) {
	s := &e.config.Server
	if o.ClientID == "" || !s.Console {
		return
	}
	var redirects, back []string
	for _, base := range consoleBases(s) {
		redirects = append(redirects, base+console.CallbackPath+auth.IssuerID(o.Issuer))
		back = append(back, base+console.Path)
	}
	if len(back) == 0 {
		e.tell(Check{Name: "oidc", OK: true, Note: true, Detail: "nobody can log in at " + o.Issuer +
			" in the browser: the server does not know its address", Remedy: "Set public_url"})
		return
	}
	address := "address"
	if len(back) > 1 {
		address = "addresses"
	}
	e.report(true, "oidc", fmt.Sprintf("the client %s of %s must have the redirect %s %s, and %s to come back to after a log-out",
		o.ClientID, o.Issuer, address, strings.Join(redirects, " and "), strings.Join(back, " and ")))
}

// consoleBases returns the addresses of the server under which browsers log in at a provider, and to which it sends them
// back: on loopback, without public_url, the one of the console's links and the one that people type.
func consoleBases(s *config.Server) []string {
	switch {
	case s.PublicURL != "":
		return []string{s.PublicURL}
	case !auth.Loopback(s.Host):
		return nil
	case s.TLS.Enabled(): // links have the host of the certificate
		return []string{s.LocalURL("localhost")}
	}
	return []string{s.LocalURL(console.LocalHost), s.LocalURL("localhost")}
}

// checkIssuers fetches the keys of each OIDC issuer of the settings.
func (e *examination) checkIssuers(ctx context.Context, log *slog.Logger) {
	verifier, err := app.Verifier(e.config, log)
	if err != nil {
		e.fail("oidc", err)
		return
	}
	if verifier == nil {
		return
	}
	for _, o := range e.config.Server.OIDC {
		n, err := verifier.Fetch(ctx, o.Issuer)
		if err != nil {
			e.report(false, "oidc", fmt.Sprintf("the keys of %s cannot be fetched: %v", o.Issuer, err))
			continue
		}
		e.report(true, "oidc", fmt.Sprintf("%s has %s; its tokens must be for %s", o.Issuer,
			plural.Of(n, "key", "keys"), strings.Join(o.Audience, " or ")))
		e.checkProvider(o)
	}
	verifier.Close()
}
