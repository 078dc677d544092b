// Package dockercommand reads the settings of the docker command: which daemon it uses, and its credentials for
// registries.
package dockercommand

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"
)

// maxConfig bounds a file with settings of the docker command, in bytes.
const maxConfig = 1 << 20

// settings is what this package needs of config.json.
type settings struct {
	CurrentContext string                     `json:"currentContext"`
	Auths          map[string]json.RawMessage `json:"auths"`
	CredsStore     string                     `json:"credsStore"`
	CredHelpers    map[string]string          `json:"credHelpers"`
}

// settingsDir returns the folder with the settings of the docker command; "" where there is no home folder.
func settingsDir() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// readSettings returns the settings of the docker command. They are empty where there is no such file.
func readSettings() (c settings, err error) {
	path := filepath.Join(settingsDir(), "config.json")
	if err := readJSON(path, &c); err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("docker: %s: %w", path, err)
	}
	return c, nil
}

func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// Client returns a client of the daemon at an address, or that of a context; at most one is given. Without both it is
// the daemon of the docker command: of DOCKER_HOST, DOCKER_CONTEXT or the current context. Where none of them names
// one, it is looked for when it is first needed.
func Client(host, context string) (*Daemon, error) { return ClientAfter("", host, context) }

// ClientAfter is Client for somebody who keeps something on the daemon: a file has its address, if it was looked for.
// Then no other one is looked for.
func ClientAfter(file, host, context string) (*Daemon, error) {
	options, named, err := clientOptions(host, context)
	if err != nil {
		return nil, err
	}
	d := &Daemon{}
	if !named {
		m := here()
		if d.search, err = newSearch(m, file); err != nil {
			return nil, err
		}
		options = []client.Opt{client.WithHost(m.usual().address), client.WithDialContext(d.search.dial),
			client.WithAPIVersionFromEnv()}
	}
	options = append(options, (&silence{timeout: pingTimeout}).options()...)
	d.Client, err = client.New(append(options, client.WithUserAgent("sandlot"))...)
	if err != nil {
		return nil, fmt.Errorf("docker: the daemon's address: %w", err)
	}
	return d, nil
}

// clientOptions returns the options of the daemon that settings name, if they do.
func clientOptions(host, context string) (options []client.Opt, named bool, err error) {
	if host != "" && context != "" {
		return nil, false, errors.New("docker.host and docker.context are both set; remove one of them")
	}
	own := os.Getenv("DOCKER_HOST")
	name := cmp.Or(context, os.Getenv("DOCKER_CONTEXT"))
	if host == "" && name == "" && own == "" {
		s, err := readSettings()
		if err != nil {
			return nil, false, err
		}
		if name = s.CurrentContext; name == "default" { // the one that stands for no settings
			name = ""
		}
	}
	switch {
	case host != "":
		options, err = environmentOptions(host)
	case context == "" && own != "":
		options, err = environmentOptions(own)
	case name == "":
		return nil, false, nil
	case name == "default": // the docker command has it always, and stores nothing of it
		options, err = environmentOptions(own)
	default:
		options, err = contextOptions(name)
	}
	return options, true, err
}

// environmentOptions returns the options of the daemon at an address, empty for the usual socket, with TLS as the
// environment says. The library's own reading of it knows DOCKER_CERT_PATH alone.
func environmentOptions(host string) (options []client.Opt, err error) {
	if isSSH(host) {
		options, err := sshOptions(host)
		return append(options, client.WithAPIVersionFromEnv()), err
	}
	dir, verify := os.Getenv("DOCKER_CERT_PATH"), os.Getenv("DOCKER_TLS_VERIFY") != ""
	if isRemote(host) && (dir != "" || verify || os.Getenv("DOCKER_TLS") != "") {
		secured, err := withTLS(cmp.Or(dir, settingsDir()), verify, dir != "")
		if err != nil {
			return nil, err
		}
		options = append(options, secured)
	}
	if host != "" {
		options = append(options, client.WithHost(host))
	}
	return append(options, client.WithAPIVersionFromEnv()), nil
}

func isSSH(host string) bool { return strings.HasPrefix(host, "ssh://") }

func isRemote(host string) bool { return host != "" && !strings.HasPrefix(host, "unix://") }

// withTLS returns the option for TLS with the files of a folder: the certificate of an authority, without which the
// machine's are trusted, and the client's own. Unless all are required, each may be missing.
func withTLS(dir string, verify, required bool) (client.Opt, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: !verify}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	switch {
	case err == nil:
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("docker: %s/ca.pem has no certificate", dir)
		}
	case required || !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("docker: the certificates for TLS: %w", err)
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	_, certErr := os.Stat(filepath.Join(dir, "cert.pem"))
	switch {
	case err == nil:
		settings.Certificates = []tls.Certificate{own}
	case required || !errors.Is(certErr, os.ErrNotExist):
		return nil, fmt.Errorf("docker: the certificates for TLS: %w", err)
	}
	return client.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: settings},
		CheckRedirect: client.CheckRedirect}), nil
}

// contextMeta is the file of a context of the docker command.
type contextMeta struct {
	Name      string
	Endpoints map[string]struct {
		Host          string
		SkipTLSVerify bool
	}
}

// contextOptions returns the options of a context of the docker command.
func contextOptions(name string) ([]client.Opt, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	path := filepath.Join(settingsDir(), "contexts", "meta", id, "meta.json")
	var meta contextMeta
	if err := readJSON(path, &meta); err != nil {
		return nil, fmt.Errorf("docker: the context %q cannot be read: %w; `docker context ls` lists them", name, err)
	}
	endpoint := meta.Endpoints["docker"]
	if endpoint.Host == "" {
		return nil, fmt.Errorf("docker: the context %q names no daemon", name)
	}
	if isSSH(endpoint.Host) {
		options, err := sshOptions(endpoint.Host)
		return append(options, client.WithAPIVersionFromEnv()), err
	}
	options := []client.Opt{client.WithHost(endpoint.Host), client.WithAPIVersionFromEnv()}
	dir := filepath.Join(settingsDir(), "contexts", "tls", id, "docker")
	if _, err := os.Stat(dir); isRemote(endpoint.Host) && (err == nil || endpoint.SkipTLSVerify) {
		secured, err := withTLS(dir, !endpoint.SkipTLSVerify, false)
		if err != nil {
			return nil, err
		}
		options = append([]client.Opt{secured}, options...)
	}
	return options, nil
}
