package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

// A repository of a registry is a source of images.
type repository struct {
	repo   name.Repository
	client *http.Client
	retry  retryPolicy
	tag    string // what manifest gets for an empty descriptor
}

// acceptedManifests are the types of documents that can be read.
var acceptedManifests = strings.Join([]string{string(types.OCIImageIndex), string(types.DockerManifestList),
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2)}, ", ")

// dialRegistry logs in at the registry of a repository, with the credentials of Docker's configuration and its
// helpers. It ends after the time for a document.
func dialRegistry(ctx context.Context, repo name.Repository, retry retryPolicy) (*repository, error) {
	r := &repository{repo: repo, retry: retry}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the credentials for %s cannot be read from Docker's "+
			"configuration: %s", repo.RegistryStr(), printable(err.Error()))
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // a layer is compressed, and its digest is of what is transferred
	base.ResponseHeaderTimeout = time.Minute
	base.MaxResponseHeaderBytes = 1 << 20
	base.MaxIdleConnsPerHost = parallelTransfers
	ctx, cancel := context.WithTimeout(ctx, retry.document) // the transport does not keep it
	defer cancel()
	err = r.again(ctx, func() error {
		inner, err := transport.NewWithContext(ctx, repo.Registry, auth, reach{base, repo.RegistryStr()},
			[]string{repo.Scope(transport.PullScope)})
		if err == nil {
			err = ctx.Err() // the body of an answer without an end is no error
		}
		r.client = &http.Client{Transport: inner, CheckRedirect: checkRedirects}
		return r.explain(err, repo.RepositoryStr())
	})
	if err != nil {
		base.CloseIdleConnections()
	}
	return r, err
}

// A refusedError is a request that is not made.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// reach bounds where requests for a registry go: the registry itself, its log-in server, and where both redirect to.
// A registry on the internet leads neither to this machine nor to addresses of this network, one of this network not to
// this machine. Names are not looked up: one may mean an address of this network.
type reach struct {
	inner    http.RoundTripper
	registry string // its host, perhaps with a port
}

func (b reach) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := b.check(r.URL); err != nil {
		return nil, err
	}
	return b.inner.RoundTrip(r)
}

func (b reach) check(to *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(to.Hostname()), ".")
	addr, _ := netip.ParseAddr(host) // a name is the zero address
	addr = addr.Unmap()
	onLoopback := isLoopback(host) || addr.IsUnspecified()
	switch {
	case onLoopback && !isLoopback(b.registry), (addr.IsPrivate() || addr.IsLinkLocalUnicast()) && !isLocal(b.registry):
		return refusedError(fmt.Sprintf("a request for %s to %s, an address of this network", printable(b.registry),
			printable(host)))
	case to.Scheme != "https" && !onLoopback:
		return refusedError("plain HTTP is for registries on this machine, and not for " + printable(to.Host))
	}
	return nil
}

// checkRedirects bounds how often a request is redirected. To where, reach bounds.
func checkRedirects(_ *http.Request, via []*http.Request) error {
	const most = 10
	if len(via) >= most {
		return refusedError(fmt.Sprintf("over %d redirects", most))
	}
	return nil
}

// isLocal reports whether a host, perhaps with a port, is this machine or an address of this network.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	addr = addr.Unmap()
	return isLoopback(host) || err == nil && (addr.IsPrivate() || addr.IsLinkLocalUnicast())
}

func (r *repository) String() string { return r.repo.RegistryStr() }

func (r *repository) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	identifier := r.tag
	if d.Digest.Hex != "" {
		identifier = d.Digest.String()
	}
	var raw []byte
	ctx, cancel := context.WithTimeout(ctx, r.retry.document)
	defer cancel()
	err := r.again(ctx, func() error {
		response, err := r.get(ctx, "manifests", identifier, http.Header{"Accept": {acceptedManifests}}, http.StatusOK)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		raw, err = io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
		return r.explain(err, identifier)
	})
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxDocument:
		return nil, malformed(r.repo.Name(), "its manifest has over %d MiB", maxDocument>>20)
	case d.Digest.Hex != "":
		return raw, checkDocument(raw, d, r.repo.Name())
	}
	return raw, nil
}

func (r *repository) blob(ctx context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, d.Size-1))
	}
	response, err := r.get(ctx, "blobs", d.Digest.String(), header, http.StatusOK, http.StatusPartialContent,
		http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, 0, err
	}
	start, length := int64(0), d.Size
	other := response.StatusCode == http.StatusRequestedRangeNotSatisfiable // than what was asked for
	if response.StatusCode == http.StatusPartialContent {
		first, last, all := int64(0), int64(0), int64(0)
		_, err := fmt.Sscanf(response.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &all)
		other = err != nil || first != offset || all != d.Size
		start, length = offset, d.Size-offset
	}
	switch {
	case other && offset > 0:
		_ = response.Body.Close()
		return r.blob(ctx, d, 0)
	case other:
		_ = response.Body.Close()
		return nil, 0, malformed(r.String(), "asked for the whole %s, it answered with status %d and the range %q",
			d.Digest, response.StatusCode, response.Header.Get("Content-Range"))
	}
	if response.ContentLength > length {
		_ = response.Body.Close()
		return nil, 0, malformed(r.String(), "%s has %d bytes, and its manifest says %d", d.Digest,
			start+response.ContentLength, d.Size)
	}
	return body{response.Body, r}, start, nil
}

// body gives errors of reading a blob their kind.
type body struct {
	io.ReadCloser
	from *repository
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.from.explain(err, "")
	}
	return n, err
}

// get asks for something of the repository, and returns an answer that has one of the statuses.
func (r *repository) get(ctx context.Context, kind, identifier string, header http.Header, statuses ...int) (
	*http.Response, error) {
	address := fmt.Sprintf("%s://%s/v2/%s/%s/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), kind,
		identifier)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := r.client.Do(request)
	if err != nil {
		return nil, r.explain(err, identifier)
	}
	if err := transport.CheckError(response, statuses...); err != nil {
		return nil, errors.Join(r.explain(err, identifier), response.Body.Close())
	}
	return response, nil
}

// again repeats what failed for a reason that passes.
func (r *repository) again(ctx context.Context, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || ctx.Err() != nil || !isTemporary(err) || isRefused(err) || attempt >= r.retry.attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.retry.pause << attempt):
		}
	}
}

// isRefused reports whether no program listens.
func isRefused(err error) bool {
	var lookup *net.DNSError
	var dial *net.OpError
	return errors.As(err, &lookup) && lookup.IsNotFound || errors.As(err, &dial) && dial.Op == "dial"
}

// explain says in plain words why a request failed.
func (r *repository) explain(err error, identifier string) error {
	if err == nil {
		return nil
	}
	host, repo := r.repo.RegistryStr(), familiar(r.repo.Tag(""))
	repo = strings.TrimSuffix(repo, ":")
	cause := errors.New(printable(err.Error()))
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		switch code := answer.StatusCode; {
		case code == http.StatusUnauthorized:
			return fault.Wrap(fault.Unauthorized, cause, "%s does not let you read %s: there is no such image, or you "+
				"have to log in (`docker login %s`)", host, repo, host)
		case code == http.StatusForbidden:
			return fault.Wrap(fault.Forbidden, cause, "%s does not let you read %s with the credentials of Docker's "+
				"configuration (`docker login %[1]s`)", host, repo)
		case code == http.StatusNotFound:
			return fault.Wrap(fault.NotFound, cause, "%s has no %s with %s", host, repo, identifier)
		case code == http.StatusTooManyRequests:
			return fault.Wrap(fault.Connection, cause, "%s has had too many requests: log in (`docker "+
				"login %[1]s`), or try again later", host)
		case code >= 500 || code == http.StatusRequestTimeout:
			return fault.Wrap(fault.Connection, cause, "%s cannot answer now (status %d): try again later", host, code)
		default:
			return fault.Wrap(fault.InvalidParameters, cause, "%s refuses to give %s (status %d)", host, repo, code)
		}
	}
	var refused refusedError
	var unknown x509.UnknownAuthorityError
	var wrong x509.HostnameError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unknown), errors.As(err, &wrong), errors.As(err, &certificate):
		return fault.Wrap(fault.Configuration, cause, "the certificate of %s is not one that this machine trusts", host)
	case errors.As(err, &refused):
		return fault.Wrap(fault.Forbidden, cause, "%s leads to where Sandlot does not go: %s", host, refused)
	}
	return fault.Wrap(fault.Connection, err, "%s cannot be reached: %s", host, cause)
}
