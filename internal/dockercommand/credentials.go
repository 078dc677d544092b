package dockercommand

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"
)

// RegistryAuth returns the credentials for the registry of an image, as a daemon wants them; "": there are none.
func RegistryAuth(ctx context.Context, name reference.Named) (string, error) {
	s, err := readSettings()
	if err != nil {
		return "", err
	}
	domain := reference.Domain(name)
	auth, err := s.credentials(ctx, domain)
	if err != nil || auth == nil {
		return "", err
	}
	text, err := json.Marshal(auth)
	return base64.URLEncoding.EncodeToString(text), err
}

// credentials returns the credentials for a registry; nil: there are none.
func (s settings) credentials(ctx context.Context, domain string) (*registry.AuthConfig, error) {
	if keys := keysOf(s.CredHelpers, domain); len(keys) > 0 {
		return askHelper(ctx, s.CredHelpers[keys[0]], keys[0])
	}
	if keys := keysOf(s.Auths, domain); len(keys) > 0 {
		key := keys[0]
		entry := s.Auths[key]
		if s.CredsStore != "" {
			return askHelper(ctx, s.CredsStore, key)
		}
		var stored struct{ Auth, IdentityToken string }
		if err := json.Unmarshal(entry, &stored); err != nil {
			return nil, fmt.Errorf("docker: the entry of %s in config.json: %w", key, err)
		}
		plain, err := base64.StdEncoding.DecodeString(stored.Auth)
		user, password, found := strings.Cut(string(plain), ":")
		if err != nil || !found && stored.IdentityToken == "" {
			return nil, fmt.Errorf("docker: the entry of %s in config.json is broken; log in again with `docker login`",
				key)
		}
		return &registry.AuthConfig{Username: user, Password: password, IdentityToken: stored.IdentityToken,
			ServerAddress: key}, nil
	}
	if s.CredsStore == "" {
		return nil, nil
	}
	server := domain // helpers that make credentials have no entry
	if domain == defaultDomain() {
		server = "https://index." + domain + "/v1/"
	}
	auth, err := askHelper(ctx, s.CredsStore, server)
	if errors.Is(err, exec.ErrNotFound) { // as on a machine that has got its settings from another
		return nil, nil
	}
	return auth, err
}

// keysOf returns the keys of a section of config.json that are of a registry: the one that is its name first, and
// always in the same order.
func keysOf[V any](section map[string]V, domain string) []string {
	keys := slices.Sorted(maps.Keys(section))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !isRegistry(key, domain) })
	if i := slices.Index(keys, domain); i > 0 {
		keys = slices.Insert(slices.Delete(keys, i, i+1), 0, domain)
	}
	return keys
}

// isRegistry reports whether a key of config.json, a host name or an address, is of a registry. The key of the
// default registry is its domain, or the address of its index; other hosts of the domain, and other paths, are of
// others, such as a log-in's.
func isRegistry(key, domain string) bool {
	address := key
	if u, err := url.Parse(key); err == nil && u.Host != "" {
		address = u.Host + u.Path
	}
	host, path, _ := strings.Cut(address, "/")
	if domain != defaultDomain() {
		return host == domain
	}
	return (host == domain || host == "index."+domain) && (path == "" || path == "v1" || path == "v1/")
}

// defaultDomain returns the domain of images whose name has none.
func defaultDomain() string {
	name, err := reference.ParseNormalizedNamed("any")
	if err != nil {
		return ""
	}
	return reference.Domain(name)
}

const (
	// helperTimeout is how long a credential helper may take. It may ask the user's key ring.
	helperTimeout = 30 * time.Second
	// tokenUser is the user name by which a helper says that the secret is a token.
	tokenUser = "<token>"
)

var helperName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// askHelper asks a credential helper of the docker command; nil: it knows none.
func askHelper(ctx context.Context, helper, server string) (*registry.AuthConfig, error) {
	if !helperName.MatchString(helper) {
		return nil, fmt.Errorf("docker: %q in config.json is not the name of a credential helper", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		if bytes.Contains(out, []byte("credentials not found")) {
			return nil, nil
		}
		return nil, fmt.Errorf("docker: the credential helper %s: %w: %.200s", helper, err, bytes.TrimSpace(out))
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("docker: the answer of the credential helper %s: %w", helper, err)
	}
	if answer.Username == tokenUser {
		return &registry.AuthConfig{IdentityToken: answer.Secret, ServerAddress: server}, nil
	}
	return &registry.AuthConfig{Username: answer.Username, Password: answer.Secret, ServerAddress: server}, nil
}
