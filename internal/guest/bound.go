package guest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sandlot/proto/agentv1"
)

// trustDir is the folder with the agent's own files of certificates.
const trustDir = "/var/lib/sandlot/trust"

// maxTrusted bounds a file of certificates, in bytes.
const maxTrusted = 16 << 20

const nodeVariable = "NODE_EXTRA_CA_CERTS"

// applyBound gives programs the placeholders of bound secrets, and makes them trust the host's certificates for the
// hosts of these secrets. Interpreters that run get the variables before their next cell.
func (a *Agent) applyBound(ctx context.Context, m *agentv1.Bound) {
	a.boundMu.Lock()
	defer a.boundMu.Unlock()
	a.mu.Lock()
	env := maps.Clone(a.env)
	a.mu.Unlock()
	bound := map[string]string{}
	if len(m.Ca) > 0 {
		maps.Copy(bound, trust(trustDir, env, m))
	}
	maps.Copy(bound, m.Env)
	a.changeVariables(ctx, false, func() { a.bound = bound })
}

// trust makes programs trust a certificate: it adds it to the files of certificates that there are, and returns the
// variables for programs that have to be told. Where a file cannot be changed, the variables that name it name a copy,
// which is in dir.
func trust(dir string, env map[string]string, m *agentv1.Bound) map[string]string {
	changed := map[string]string{}
	_ = os.MkdirAll(dir, 0o755)
	for n, path := range m.Bundles {
		text, ok := readTrusted(path)
		if !ok || bytes.Contains(text, m.Ca) {
			continue
		}
		text = append(text, m.Ca...)
		if n == 0 {
			copied := filepath.Join(dir, "bundle.crt")
			if appendTrusted(path, m.Ca) != nil && writeTrusted(copied, text) == nil {
				for name, value := range env {
					if value == path {
						changed[name] = copied
					}
				}
			}
			continue
		}
		_ = appendTrusted(path, m.Ca)
	}
	for path, text := range m.Files {
		if _, err := os.Stat(filepath.Dir(path)); err == nil {
			_ = writeTrusted(path, text)
		}
	}
	maps.Copy(changed, trustInJava(dir, env, m))
	extra := m.Ca
	if text, ok := readTrusted(env[nodeVariable]); ok {
		extra = append(text, m.Ca...)
	}
	if node := filepath.Join(dir, "node.crt"); writeTrusted(node, extra) == nil {
		changed[nodeVariable] = node
	}
	return changed
}

// javaVariable has options for each JVM, which says on its standard error that it has read them.
const javaVariable = "JAVA_TOOL_OPTIONS"

// trustInJava does it for Java: it replaces the stores of the distributions, and, where there is a Java, returns the
// variable that names a store in dir, as JDKs have stores of their own.
func trustInJava(dir string, env map[string]string, m *agentv1.Bound) map[string]string {
	if len(m.Java) == 0 {
		return nil
	}
	for _, path := range m.JavaStores {
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
			_ = writeTrusted(path, m.Java)
		}
	}
	found := slices.ContainsFunc(filepath.SplitList(env["PATH"]), func(folder string) bool {
		st, err := os.Stat(filepath.Join(folder, "java"))
		return err == nil && st.Mode().IsRegular()
	})
	store := filepath.Join(dir, "java.p12")
	if !found || writeTrusted(store, m.Java) != nil {
		return nil
	}
	options := "-Djavax.net.ssl.trustStore=" + store + " -Djavax.net.ssl.trustStoreType=PKCS12"
	if own := env[javaVariable]; own != "" {
		options = own + " " + options
	}
	return map[string]string{javaVariable: options}
}

// appendTrusted appends a certificate to a file, if it is none that a link leads to: such a file is in the list itself.
func appendTrusted(path string, ca []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(ca)
	return errors.Join(err, f.Close())
}

// writeTrusted replaces a file at once, so that no program reads half of it.
func writeTrusted(path string, text []byte) error {
	if old, ok := readTrusted(path); ok && bytes.Equal(old, text) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sandlot-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
