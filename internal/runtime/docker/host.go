package docker

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/moby/moby/client"
)

// Config says which daemon and folders a Runtime uses, and how it makes containers.
type Config struct {
	// Host is the daemon's address, such as unix:///run/docker.sock. Empty: the one that the docker command uses.
	Host string
	// Context is the name of a context of the docker command, which has the daemon's address. Not with Host.
	Context string
	// OCIRuntime is the daemon's runtime that runs containers, such as "runsc". Empty: the daemon's default.
	OCIRuntime string
	// WritableRoot lets sandboxes write anywhere in their root file system, and not only in /tmp, home folders
	// and the like.
	WritableRoot bool
	Agent        string // path of sandlot-agent
	// StateDir is an existing folder for this instance alone. No part of its path is a symbolic link.
	StateDir string
	Log      *slog.Logger
}

// maxConfig bounds a file with settings of the docker command, in bytes.
const maxConfig = 1 << 20

// commandConfig is what this package needs of the docker command's config.json.
type commandConfig struct {
	CurrentContext string                     `json:"currentContext"`
	Auths          map[string]json.RawMessage `json:"auths"`
	CredsStore     string                     `json:"credsStore"`
	CredHelpers    map[string]string          `json:"credHelpers"`
}

// commandDir returns the folder with the settings of the docker command; "" where there is no home folder.
func commandDir() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// readCommandConfig returns the settings of the docker command. They are empty where there is no such file.
func readCommandConfig() (c commandConfig, err error) {
	path := filepath.Join(commandDir(), "config.json")
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

// clientOptions returns the options for the daemon that the settings name. Without one it is that of the docker
// command: of DOCKER_HOST, DOCKER_CONTEXT, the current context, or else the usual socket.
func clientOptions(c Config) ([]client.Opt, error) {
	if c.Host != "" && c.Context != "" {
		return nil, errors.New("docker.host and docker.context are both set; remove one of them")
	}
	if c.Host != "" {
		return []client.Opt{client.WithTLSClientConfigFromEnv(), client.WithHost(c.Host),
			client.WithAPIVersionFromEnv()}, nil
	}
	name := c.Context
	if name == "" && os.Getenv("DOCKER_HOST") == "" {
		settings, err := readCommandConfig()
		if err != nil {
			return nil, err
		}
		name = cmp.Or(os.Getenv("DOCKER_CONTEXT"), settings.CurrentContext)
	}
	if name == "" || name == "default" && c.Context == "" {
		return []client.Opt{client.FromEnv}, nil
	}
	return contextOptions(name)
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
	path := filepath.Join(commandDir(), "contexts", "meta", id, "meta.json")
	var meta contextMeta
	if err := readJSON(path, &meta); err != nil {
		return nil, fmt.Errorf("docker: the context %q cannot be read: %w; `docker context ls` lists them", name, err)
	}
	endpoint := meta.Endpoints["docker"]
	if endpoint.Host == "" {
		return nil, fmt.Errorf("docker: the context %q names no daemon", name)
	}
	options := []client.Opt{client.WithHost(endpoint.Host), client.WithAPIVersionFromEnv()}
	tls := filepath.Join(commandDir(), "contexts", "tls", id, "docker")
	if _, err := os.Stat(tls); err == nil {
		options = append(options, client.WithTLSClientConfig(filepath.Join(tls, "ca.pem"),
			filepath.Join(tls, "cert.pem"), filepath.Join(tls, "key.pem")))
	}
	return options, nil
}
