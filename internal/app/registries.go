package app

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

// registries are where packages come from, by the machine's own tools.
type registries struct {
	log   *slog.Logger
	rules atomic.Pointer[[]egress.Rule] // that let sandboxes reach them
	stale bool                          // they were remembered, and may have changed
}

// provide gives the templates what makes the network work for their programs:
// the certificates that this machine trusts, and where packages come from.
func (r *registries) provide(ctx context.Context, c *config.Config, templates []*image.Template) error {
	set, err := r.recall(ctx, c)
	if err != nil {
		return err
	}
	r.allow(set)
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
	stores, err := javaStores(certificates, c.Server.StateDir)
	if err != nil {
		return err
	}
	for _, t := range templates {
		t.Add(files, env)
		if t.Rootfs == "" {
			t.Binds = append(t.Binds, stores...)
		} else {
			t.Furnish() // as the template host is
		}
	}
	return nil
}

// javaStores covers the trust stores that the machine's JDKs have of their own.
func javaStores(b cacerts.Bundle, stateDir string) ([]image.Bind, error) {
	if b.Len() == 0 {
		return nil, nil
	}
	var binds []image.Bind
	for _, at := range cacerts.JavaStores() {
		if !strings.HasPrefix(at, "/usr/") { // the template host shows no other
			continue
		}
		source := filepath.Join(stateDir, "java-cacerts")
		if len(binds) == 0 {
			if err := os.WriteFile(source, b.JavaStore(), 0o644); err != nil {
				return nil, fmt.Errorf("writing Java's certificates: %w", err)
			}
		}
		binds = append(binds, image.Bind{Source: source, Target: at})
	}
	return binds, nil
}

// allowed returns the rules that let sandboxes reach the registries.
func (r *registries) allowed() []egress.Rule { return *r.rules.Load() }

// allow takes up a set.
func (r *registries) allow(s pkgregistry.Set) {
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

// remembered is what the machine's tools said the last time: to ask them takes
// a second, and a server should be there at once.
type remembered struct {
	Key string
	At  time.Time
	Set pkgregistry.Set
}

// recall returns what is remembered, or asks.
func (r *registries) recall(ctx context.Context, c *config.Config) (pkgregistry.Set, error) {
	key := registryKey(c)
	if text, err := os.ReadFile(rememberedFile(key)); err == nil {
		var known remembered
		if json.Unmarshal(text, &known) == nil && known.Key == key {
			r.stale = time.Since(known.At) > time.Minute
			return known.Set, nil
		}
	}
	return r.ask(ctx, c)
}

// ask asks the machine's tools, and remembers what they say.
func (r *registries) ask(ctx context.Context, c *config.Config) (pkgregistry.Set, error) {
	set, err := pkgregistry.Detect(ctx, c.Network.Registries)
	if err != nil {
		return set, err
	}
	for _, note := range set.Notes {
		r.log.Info("package registries", "note", note)
	}
	key := registryKey(c)
	if file := rememberedFile(key); file != "" {
		if err := remember(file, remembered{key, time.Now(), set}); err != nil {
			r.log.Debug("could not remember the package registries", "error", err)
		}
	}
	return set, nil
}

// detect asks for the registries of settings, and takes them up.
func (r *registries) detect(ctx context.Context, c *config.Config) error {
	set, err := r.ask(ctx, c)
	if err == nil {
		r.allow(set)
	}
	return err
}

// refresh asks again if the registries are stale, and says whether that changed which
// registries sandboxes may reach.
func (r *registries) refresh(ctx context.Context, c *config.Config) (changed bool) {
	if !r.stale {
		return false
	}
	before := r.allowed()
	return r.detect(ctx, c) == nil && !slices.Equal(before, r.allowed())
}

func remember(file string, r remembered) error {
	text, err := json.Marshal(r)
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
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return forgetOldest(filepath.Dir(file))
}

// rememberedFile is in the user's own folder for such things, or "". Each key has
// a file of its own: two servers of one user that differ would else forget each
// other's answers, and ask before they serve at every start.
func rememberedFile(key string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandlot", "registries", key[:16]+".json")
}

// mostRemembered bounds how many keys' answers are kept.
const mostRemembered = 16

func forgetOldest(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) <= mostRemembered {
		return err
	}
	modified := map[string]time.Time{}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			modified[f] = st.ModTime()
		}
	}
	slices.SortFunc(files, func(x, y string) int { return modified[x].Compare(modified[y]) })
	for _, f := range files[:len(files)-mostRemembered] {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// registryKey changes with what the tools' answers depend on, but for their
// files.
func registryKey(c *config.Config) string {
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
	sum := sha256.Sum256([]byte(Version + "\x00" + string(setting) + "\x00" + strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
