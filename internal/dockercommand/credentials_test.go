package dockercommand

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"
)

// TestStore: the store of all credentials is asked for each registry, also for those of which the settings say nothing.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	index := "https://index." + defaultDomain() + "/v1/"
	helper := `#!/bin/sh
read server
case $server in
` + index + `|a.example|https://b.example/v1/) echo "{\"Username\":\"stored\",\"Secret\":\"for $server\"}";;
broken.example) echo "the key ring is locked"; exit 1;;
*) echo "credentials not found in native keychain"; exit 1;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	ask := func(store, image string) (*registry.AuthConfig, error) {
		t.Helper()
		settings := `{"auths":{"https://b.example/v1/":{}},"credsStore":"` + store + `"}`
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := readSettings()
		if err != nil {
			t.Fatal(err)
		}
		name, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			t.Fatal(err)
		}
		return s.credentials(t.Context(), reference.Domain(name))
	}
	for image, server := range map[string]string{"python": index, "a.example/i": "a.example",
		"b.example/i": "https://b.example/v1/", "n.example/i": ""} {
		got, err := ask("test", image)
		if err != nil || (got == nil) != (server == "") || got != nil && got.Password != "for "+server {
			t.Errorf("%s: %+v, %v", image, got, err)
		}
	}
	if _, err := ask("test", "broken.example/i"); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("a store that fails: %v", err)
	}
	if got, err := ask("missing", "a.example/i"); got != nil || err != nil {
		t.Errorf("a store that is not installed, for a registry without an entry: %+v, %v", got, err)
	}
	if _, err := ask("missing", "b.example/i"); err == nil {
		t.Error("a store that is not installed has the credentials of an entry")
	}
}

// TestCredentials finds what `docker login` has stored, by itself or by a helper, and gives a registry no
// credentials of another.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	helper := `#!/bin/sh
read server
case $server in
a.example) echo '{"ServerURL":"a.example","Username":"helped","Secret":"by helper"}';;
t.example) echo '{"ServerURL":"t.example","Username":"<token>","Secret":"a token"}';;
*) echo "credentials not found in native keychain"; exit 1;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	stored := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	settings := `{"auths":{"b.example:5000":{"auth":"` + stored + `"},
		"https://auth.` + defaultDomain() + `/v1/":{"auth":"?"},"https://index.` + defaultDomain() + `/v2/":{"auth":"?"},
		"https://index.` + defaultDomain() + `/v1/":{"auth":"` + stored + `"},"a.` + defaultDomain() + `":{"auth":"?"},
		"https://b.example:5000/v1/":{"auth":"?"},"broken.example":{"auth":"?"}},
		"credHelpers":{"a.example":"test","t.example":"test","n.example":"test","evil.example":"../../sh"}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]registry.AuthConfig{
		"a.example/i":      {Username: "helped", Password: "by helper", ServerAddress: "a.example"},
		"t.example/i":      {IdentityToken: "a token", ServerAddress: "t.example"},
		"b.example:5000/i": {Username: "user", Password: "pass:word", ServerAddress: "b.example:5000"},
		"python": {Username: "user", Password: "pass:word",
			ServerAddress: "https://index." + defaultDomain() + "/v1/"},
		"n.example/i": {}, "b.example/i": {}, "c.b.example:5000/i": {}, "example/i/j": {
			Username: "user", Password: "pass:word", ServerAddress: "https://index." + defaultDomain() + "/v1/"},
	} {
		name, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			t.Fatal(err)
		}
		text, err := RegistryAuth(t.Context(), name)
		if err != nil {
			t.Errorf("%s: %v", image, err)
		}
		var got registry.AuthConfig
		if text != "" {
			plain, err := base64.URLEncoding.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(plain, &got); err != nil {
				t.Fatal(err)
			}
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", image, got, want)
		}
	}
	for _, image := range []string{"broken.example/i", "evil.example/i"} {
		name, _ := reference.ParseNormalizedNamed(image)
		if _, err := RegistryAuth(t.Context(), name); err == nil || !strings.Contains(err.Error(), "config.json") {
			t.Errorf("%s: %v", image, err)
		}
	}
}
