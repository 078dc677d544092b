package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"sandlot/internal/fault"
)

// answerTimeout bounds one request to a registry, from its start to the last byte of the answer.
const answerTimeout = 20 * time.Second

// client returns the client for one registry: it connects to the host of the registry's URL and to no other, and follows
// redirects only there.
func client(base *url.URL, dial Dial) *http.Client {
	only := func(ctx context.Context, network, addr string) (net.Conn, error) {
		want := net.JoinHostPort(base.Hostname(), portOf(base))
		if addr != want {
			return nil, fmt.Errorf("the registry's address is %s, and not %s", want, fault.Clip(addr))
		}
		if a, err := netip.ParseAddr(base.Hostname()); err == nil || base.Hostname() == "localhost" || dial == nil {
			_ = a // the operator wrote this very address into the settings
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		return dial(ctx, network, addr)
	}
	return &http.Client{
		Timeout: answerTimeout,
		Transport: &http.Transport{DialContext: only, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 || r.URL.Scheme != base.Scheme || r.URL.Host != base.Host {
				return errors.New("it sends its clients to another address")
			}
			return nil
		},
	}
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// errNotThere is the error for what a registry does not have.
var errNotThere = errors.New("it is not there")

// get reads one answer of a registry.
func (r *Registry) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	if err := r.asked.take(ctx); err != nil {
		return nil, err
	}
	at := strings.TrimSuffix(r.URL, "/") + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", "sandlot/"+r.version)
	a, err := r.http.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	switch {
	case a.StatusCode == http.StatusNotFound:
		return nil, errNotThere
	case a.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answers with the status %d", a.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = fmt.Errorf("its answer has over %d MiB", maxAnswer>>20)
	}
	return data, err
}

// unreachable returns the fault for a registry that did not answer as one.
func (r *Registry) unreachable(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.ResourceLimit {
		return f
	}
	return fault.New(fault.Connection, "the registry %s cannot be used: %s", r.Name, fault.Printable(err.Error(), 300))
}
