package config

import (
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/secret"
)

func TestSecretsKey(t *testing.T) {
	if c, err := load(t, "", nil, nil); err != nil || c.Server.SecretsKeyFile != "" {
		t.Errorf("%q, %v", c.Server.SecretsKeyFile, err)
	}
	if c, err := load(t, "secrets: {key_file: /run/keys/sandlot}", nil, nil); err != nil ||
		c.Server.SecretsKeyFile != "/run/keys/sandlot" {
		t.Errorf("%q, %v", c.Server.SecretsKeyFile, err)
	}
	here, err := filepath.Abs("a.key")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := load(t, "", vars{"SANDLOT_SECRETS_KEY_FILE": "a.key"}, nil); err != nil ||
		c.Server.SecretsKeyFile != here {
		t.Errorf("%q, %v", c.Server.SecretsKeyFile, err)
	}
}

// A key in the settings is checked, and shown nowhere.
func TestSecretsKeyItself(t *testing.T) {
	const hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"
	for _, key := range []string{hex, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHv8=", " " +
		"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHv8"} {
		c, err := load(t, "", vars{"SANDLOT_SECRETS_KEY": key, "SANDLOT_SECRETS_NEW_KEY": hex}, nil)
		if err != nil || c.Server.SecretsKey.Reveal() != key {
			t.Fatalf("%q: %v", key, err)
		}
		if b, err := secret.ParseKey(key); err != nil || len(b) != 32 || b[31] != 0xff {
			t.Errorf("%q is %x, %v", key, b, err)
		}
		for _, r := range c.Rows() {
			if strings.Contains(r.Value, key) {
				t.Errorf("%s shows it", r.Key)
			}
		}
	}
	for what, env := range map[string]vars{"short": {"SANDLOT_SECRETS_KEY": hex[2:]},
		"no key": {"SANDLOT_SECRETS_KEY": "hunter2-no-key"}, "and a file": {"SANDLOT_SECRETS_KEY": hex,
			"SANDLOT_SECRETS_KEY_FILE": "/run/keys/sandlot"}, "new alone": {"SANDLOT_SECRETS_NEW_KEY": hex}} {
		if _, err := load(t, "", env, nil); err == nil || strings.Contains(err.Error(), "hunter2") ||
			strings.Contains(err.Error(), hex[2:]) || !strings.Contains(strings.ToLower(err.Error()), "key") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
