package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
)

// defaultDaemon is where Docker's daemon listens.
const defaultDaemon = "unix:///var/run/docker.sock"

// openDaemon has a Docker daemon, the one of DOCKER_HOST, write an image as `docker save` does.
func (s *Store) openDaemon(ctx context.Context, image string, want v1.Platform, tell func(Progress)) (*folder, error) {
	host := cmp.Or(os.Getenv("DOCKER_HOST"), defaultDaemon)
	client, base, err := daemonClient(host)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/images/"+escapeName(image)+"/get", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fault.Wrap(fault.Connection, err, "no Docker daemon answers at %s: %v. The variable DOCKER_HOST "+
			"says where it is; without a daemon, import a file that `docker save` wrote", host, err)
	}
	defer response.Body.Close()
	f := newFolder(daemonPrefix + image)
	if response.StatusCode != http.StatusOK {
		return nil, daemonError(response, image)
	}
	file, err := s.spool(&countingReader{from: response.Body, title: f.title, tell: tell})
	if err != nil {
		if fault.From(err).Kind == fault.Internal {
			err = fault.Wrap(fault.Connection, err, "the Docker daemon did not send the whole image %s: %v", image, err)
		}
		return nil, err
	}
	if err := f.readArchive(ctx, s, file, want); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// daemonClient returns a client of the daemon at an address as in DOCKER_HOST, and the beginning of its URLs.
func daemonClient(host string) (*http.Client, string, error) {
	address, err := url.Parse(host)
	if err != nil || address.Scheme != "unix" && (address.Scheme != "tcp" || os.Getenv("DOCKER_TLS_VERIFY") != "") {
		return nil, "", fault.New(fault.Configuration, "images are read from Docker daemons at unix:// and, without "+
			"TLS, tcp://, and not at %q (DOCKER_HOST): write the image with `docker save -o FILE NAME`, and import "+
			"the file", host)
	}
	dialer := &net.Dialer{}
	transport := &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 1 << 20}
	if address.Scheme == "tcp" {
		return &http.Client{Transport: transport}, "http://" + address.Host, nil
	}
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", address.Path)
	}
	return &http.Client{Transport: transport}, "http://docker", nil
}

// escapeName returns the name of an image as a part of a path: the slashes stay.
func escapeName(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
}

// daemonError returns the error of an answer.
func daemonError(response *http.Response, image string) error {
	var answer struct {
		Message string `json:"message"`
	}
	_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&answer) // without a message the status says it
	cause := errors.New(printable(cmp.Or(answer.Message, response.Status)))
	if response.StatusCode == http.StatusNotFound {
		return fault.Wrap(fault.NotFound, cause, "the Docker daemon has no image %s", image)
	}
	return fault.Wrap(fault.Connection, cause, "the Docker daemon does not give the image %s: %v", image, cause)
}

// A countingReader reports how much has come of what has no known length.
type countingReader struct {
	from  io.Reader
	title string
	tell  func(Progress)
	n     int64
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.n += int64(n)
	stage := Loading
	if errors.Is(err, io.EOF) {
		stage = Loaded
	}
	r.tell(Progress{Layer: r.title, Stage: stage, Done: r.n})
	return n, err
}
