package config

import (
	"path/filepath"
	"testing"
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
