// Package registries finds the package registries and the CA certificates of this machine, for sandboxes. It owns the
// cache of what the package managers have answered.
//
// Only the package managers know the effective setting: defaults, several files, variables, scopes, mirrors. To
// read the files of npm, pip and Go would be a second, worse implementation, and a list of their registries in
// the code is wrong on every machine with a mirror. Of the answers addresses alone are taken: no user,
// password, token, query, command or path. So a registry that needs a credential does not work in a sandbox.
// The package managers run with the server's rights, in the root folder, where no project's settings apply. The
// cache is the user's and not in the state folder, as the answers depend on the machine and the user. A change
// since the last start counts some seconds late, and in sandboxes' settings at the next start.
package registries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sandlot/internal/cacerts"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
)

// Registries has the package registries that the machine's package managers use.
type Registries struct {
	log     *slog.Logger
	version string                        // of the program: another one may find others
	rules   atomic.Pointer[[]egress.Rule] // egress rules that allow the registries
	cached  bool                          // the registries are from the cache file, and may have changed

	// What Prepare adds to templates: files, variables, and, to the template host, trust stores.
	files  map[string][]byte
	env    map[string]string
	stores []image.Bind

	certificates cacerts.Bundle
	apt          []pkgregistry.AptSource
}

// New returns registries of which Open finds out.
func New(log *slog.Logger, version string) *Registries {
	return &Registries{log: log, version: version}
}

// Certificates returns the CA certificates that this machine trusts.
func (r *Registries) Certificates() cacerts.Bundle { return r.certificates }

// Prepare adds to a template what its programs need to use the network: the CA certificates that this machine
// trusts, and the settings of the package registries.
func (r *Registries) Prepare(t *image.Template) {
	t.AddFiles(r.files, r.env)
	if t.Rootfs == "" && t.Image == "" {
		t.Binds = append(t.Binds, r.stores...) // the template host has the default variables already
	} else {
		t.AddDefaultEnv()
	}
}

// Open finds the registries and certificates.
func (r *Registries) Open(ctx context.Context, c *config.Config) error {
	set, err := r.load(ctx, c)
	if err != nil {
		return err
	}
	r.setRules(set)
	r.apt = set.Apt
	files := map[string][]byte{}
	for name, text := range set.Files() {
		files[name] = []byte(text)
	}
	env := set.Env()
	certificates, err := cacerts.Collect()
	if err != nil {
		r.log.Warn("sandboxes trust no certificate: HTTPS will fail in them", "error", err)
	} else {
		maps.Copy(files, certificates.Files())
		maps.Copy(env, certificates.Env())
	}
	for _, note := range certificates.Notes {
		r.log.Info("certificates", "note", note)
	}
	r.files, r.env, r.certificates = files, env, certificates
	r.stores, err = javaStoreBinds(certificates, c.Server.StateDir)
	return err
}

// javaStoreBinds returns binds that replace the machine's JDK trust stores in sandboxes by one with b.
func javaStoreBinds(b cacerts.Bundle, stateDir string) ([]image.Bind, error) {
	if b.Len() == 0 {
		return nil, nil
	}
	var binds []image.Bind
	for _, target := range cacerts.JavaStores() {
		if !strings.HasPrefix(target, "/usr/") || !image.InUsr(target) { // sandboxes have no other folder of the machine with JDKs
			continue
		}
		source := filepath.Join(stateDir, "java-cacerts")
		if len(binds) == 0 {
			if err := os.WriteFile(source, b.JavaStore(), 0o644); err != nil {
				return nil, fmt.Errorf("writing Java's certificates: %w", err)
			}
		}
		binds = append(binds, image.Bind{Source: source, Target: target})
	}
	return binds, nil
}

// EgressRules returns the egress rules that allow the registries.
func (r *Registries) EgressRules() []egress.Rule { return *r.rules.Load() }

// Apt returns the archive of the machine's distribution.
func (r *Registries) Apt() []pkgregistry.AptSource { return r.apt }

// setRules replaces the rules by rules for the registries in s.
func (r *Registries) setRules(s pkgregistry.Set) {
	var rules []egress.Rule
	for _, h := range s.Hosts {
		rule, err := egress.ParseRule(h.String())
		if err != nil {
			r.log.Warn("a registry cannot be reached by sandboxes", "registry", h.String(), "error", err)
			continue
		}
		rules = append(rules, rule)
	}
	r.rules.Store(&rules)
}

// cachedSet is the content of the cache file: the last answers of the package managers. To ask them
// takes a second, by which the cache shortens a server's start.
type cachedSet struct {
	Key string
	At  time.Time
	Set pkgregistry.Set
}

// load returns the registries from the cache file or, if there is none, asks the package managers.
func (r *Registries) load(ctx context.Context, c *config.Config) (pkgregistry.Set, error) {
	key := r.key(c)
	if text, err := os.ReadFile(cacheFile(key)); err == nil {
		var stored cachedSet
		if json.Unmarshal(text, &stored) == nil && stored.Key == key {
			r.cached = time.Since(stored.At) > time.Minute
			return stored.Set, nil
		}
	}
	return r.detectAndStore(ctx, c)
}

// detectAndStore asks the machine's package managers for their registries, and stores them in the cache file.
func (r *Registries) detectAndStore(ctx context.Context, c *config.Config) (pkgregistry.Set, error) {
	set, err := pkgregistry.Detect(ctx, c.Network.Registries)
	if err != nil {
		return set, err
	}
	for _, note := range set.Notes {
		r.log.Info("package registries", "note", note)
	}
	key := r.key(c)
	if file := cacheFile(key); file != "" {
		if err := writeCache(file, cachedSet{key, time.Now(), set}); err != nil {
			r.log.Debug("could not remember the package registries", "error", err)
		}
	}
	return set, nil
}

// Reload asks for the registries, and allows them.
func (r *Registries) Reload(ctx context.Context, c *config.Config) error {
	set, err := r.detectAndStore(ctx, c)
	if err == nil {
		r.setRules(set)
	}
	return err
}

// ReloadIfCached asks again if the registries are from the cache file, and reports whether the rules have
// changed.
func (r *Registries) ReloadIfCached(ctx context.Context, c *config.Config) (changed bool) {
	if !r.cached {
		return false
	}
	before := r.EgressRules()
	return r.Reload(ctx, c) == nil && !slices.Equal(before, r.EgressRules())
}

// writeCache writes the cache file, and removes the oldest ones.
func writeCache(file string, set cachedSet) error {
	text, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".registries-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return removeOldestFiles(filepath.Dir(file))
}

// cacheFile returns the path of the cache file for a key, in the user's cache folder, or "". Each
// key has its own file: otherwise two servers of one user with different settings would replace each
// other's, and both would have to ask at every start.
func cacheFile(key string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandlot", "registries", key[:16]+".json")
}

// maxCacheFiles is the maximum number of cache files.
const maxCacheFiles = 16

func removeOldestFiles(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) <= maxCacheFiles {
		return err
	}
	modified := map[string]time.Time{}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			modified[f] = st.ModTime()
		}
	}
	slices.SortFunc(files, func(x, y string) int { return modified[x].Compare(modified[y]) })
	for _, f := range files[:len(files)-maxCacheFiles] {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// key returns the key of the cache: a hash of what the answers depend on (version, setting and
// environment), apart from the package managers' configuration files.
func (r *Registries) key(c *config.Config) string {
	var parts []string
	for _, kv := range os.Environ() {
		for _, prefix := range []string{"PIP_", "NPM_CONFIG_", "npm_config_", "GO", "UV_", "HOME=", "PATH=", "XDG_"} {
			if strings.HasPrefix(kv, prefix) {
				parts = append(parts, kv)
			}
		}
	}
	slices.Sort(parts)
	setting, _ := json.Marshal(c.Network.Registries)
	sum := sha256.Sum256([]byte(r.version + "\x00" + string(setting) + "\x00" + strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
