package oci

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"sandlot/internal/fault"
)

// maxReference bounds the length of a reference.
const maxReference = 512

// parseReference reads the reference of an image as Docker does: python:3.12-slim, HOST/NAME:TAG, NAME@sha256:….
func parseReference(ref string) (name.Reference, error) {
	if len(ref) > maxReference {
		return nil, fault.New(fault.InvalidParameters, "a reference to an image has at most %d characters",
			maxReference)
	}
	parsed, err := name.ParseReference(ref)
	if err == nil && (strings.Contains(ref, "://") || strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "/")) {
		err = errors.New("it is a URL or a path")
	}
	if err != nil {
		return nil, fault.New(fault.InvalidParameters, "%q is not a reference to an image, such as python:3.12-slim or "+
			"HOST/NAME:TAG (names are in lower case): %s", ref, printable(err.Error()))
	}
	if d, ok := parsed.(name.Digest); ok && !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return nil, fault.New(fault.InvalidParameters, "%q: only digests that begin with sha256: are supported", ref)
	}
	if isLoopback(parsed.Context().RegistryStr()) {
		return name.ParseReference(ref, name.Insecure) // both https and http are tried
	}
	return parsed, nil
}

// CheckReference returns the name that Docker shows for a reference, or an error for what is not a reference, or not a
// platform of which there are images here; an empty platform is this machine's.
func CheckReference(ref, platform string) (string, error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return "", err
	}
	if _, err := parsePlatform(fault.Clip(platform)); err != nil {
		return "", err
	}
	return familiar(parsed), nil
}

// isLoopback reports whether a host, perhaps with a port, is this machine. Docker, too, speaks plain HTTP with a
// registry that is.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && addr.Unmap().IsLoopback()
}

// familiar returns the name of a reference as Docker shows it: without the default registry, with the tag.
func familiar(ref name.Reference) string {
	repository := ref.Context().Name()
	if rest, ok := strings.CutPrefix(repository, name.DefaultRegistry+"/"); ok {
		repository = strings.TrimPrefix(rest, "library/")
	}
	if d, ok := ref.(name.Digest); ok {
		return repository + "@" + d.DigestStr()
	}
	return repository + ":" + ref.Identifier()
}

// printable returns text of others for a message, on one line.
func printable(text string) string {
	const most = 300
	return strings.Join(strings.Fields(fault.Printable(text, most)), " ")
}
