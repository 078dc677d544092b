package app

import (
	"log/slog"
	"path/filepath"

	"sandlot/internal/certificate"
	"sandlot/internal/config"
)

// CertificateSource returns the source of the server's certificates by the settings; nil: plain HTTP.
func CertificateSource(c *config.Config, log *slog.Logger) *certificate.Source {
	t := c.Server.TLS
	return certificate.New(certificate.Config{CertFile: t.CertFile, KeyFile: t.KeyFile, Domains: t.Domains,
		Email: t.Email, Directory: t.Directory, CacheDir: filepath.Join(c.Server.StateDir, "acme"), Log: log})
}
