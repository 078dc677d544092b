package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandlot/internal/cacerts"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/image"
	"sandlot/internal/pkgregistry"
)

// provide gives the templates what makes the network work for their programs:
// the certificates that this machine trusts, and where packages come from.
func (a *App) provide(ctx context.Context, templates []*image.Template) error {
	set, err := a.registries(ctx)
	if err != nil {
		return err
	}
	a.allowRegistries(set)
	files := map[string][]byte{}
	for name, text := range set.Files() {
		files[name] = []byte(text)
	}
	env := set.Env()
	certificates, err := cacerts.Collect()
	if err != nil {
		a.log.Warn("sandboxes trust no certificate: HTTPS will fail in them", "error", err)
	} else {
		for name, content := range certificates.Files() {
			files[name] = content
		}
		for k, v := range certificates.Env() {
			env[k] = v
		}
	}
	for _, note := range certificates.Notes {
		a.log.Info("certificates", "note", note)
	}
	stores, err := a.javaStores(certificates)
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
func (a *App) javaStores(b cacerts.Bundle) ([]image.Bind, error) {
	if b.Len() == 0 {
		return nil, nil
	}
	var binds []image.Bind
	for _, at := range cacerts.JavaStores() {
		if !strings.HasPrefix(at, "/usr/") { // the template host shows no other
			continue
		}
		source := filepath.Join(a.Config.Server.StateDir, "java-cacerts")
		if len(binds) == 0 {
			if err := os.WriteFile(source, b.JavaStore(), 0o644); err != nil {
				return nil, fmt.Errorf("writing Java's certificates: %w", err)
			}
		}
		binds = append(binds, image.Bind{Source: source, Target: at})
	}
	return binds, nil
}

// allowRegistries lets sandboxes reach where packages come from.
func (a *App) allowRegistries(s pkgregistry.Set) {
	var rules []egress.Rule
	for _, h := range s.Hosts {
		r, err := egress.ParseRule(h.String())
		if err != nil {
			a.log.Warn("a registry cannot be reached by sandboxes", "registry", h.String(), "error", err)
			continue
		}
		rules = append(rules, r)
	}
	a.found.Store(&rules)
}

// remembered is what the machine's tools said the last time: to ask them takes
// a second, and a server should be there at once.
type remembered struct {
	Key string
	At  time.Time
	Set pkgregistry.Set
}

// registries returns what is remembered, or asks.
func (a *App) registries(ctx context.Context) (pkgregistry.Set, error) {
	key := registryKey(a.Config)
	if text, err := os.ReadFile(rememberedFile(key)); err == nil {
		var r remembered
		if json.Unmarshal(text, &r) == nil && r.Key == key {
			a.stale = time.Since(r.At) > time.Minute
			return r.Set, nil
		}
	}
	return a.ask(ctx, key, a.Config)
}

func (a *App) ask(ctx context.Context, key string, c *config.Config) (pkgregistry.Set, error) {
	set, err := pkgregistry.Detect(ctx, c.Network.Registries)
	if err != nil {
		return set, err
	}
	for _, note := range set.Notes {
		a.log.Info("package registries", "note", note)
	}
	if file := rememberedFile(key); file != "" {
		if err := remember(file, remembered{key, time.Now(), set}); err != nil {
			a.log.Debug("could not remember the package registries", "error", err)
		}
	}
	return set, nil
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

// settled is how long after its start a server asks for what can wait: that takes
// a second of a processor, and what an earlier server left is taken over first.
func (a *App) settled() time.Duration {
	if a.Book.Live() == 0 {
		return 0
	}
	return 5 * time.Second
}

// recheck asks the machine's tools again, while the server serves already.
func (a *App) recheck(ctx context.Context) {
	if !a.stale {
		return
	}
	set, err := a.ask(ctx, registryKey(a.Config), a.Config)
	if err != nil {
		return
	}
	before := *a.found.Load()
	a.allowRegistries(set)
	if !slices.Equal(before, *a.found.Load()) {
		a.applyPolicies(a.latest.Load())
		a.log.Info("the machine's package registries have changed: sandboxes may reach them now, and use them from " +
			"the next start of the server on")
	}
}
