package docker

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
)

// TestHost finds the daemon where the docker command does.
func TestHost(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(name, "")
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, host string, c Config) {
		t.Helper()
		c.Agent, c.StateDir = "/agent", dir
		r, err := New(c)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer r.Close()
		if got := r.client.DaemonHost(); got != host {
			t.Errorf("%s: %s, want %s", what, got, host)
		}
	}
	want("nothing set", client.DefaultDockerHost, Config{})
	for _, name := range []string{"one", "two"} {
		sum := sha256.Sum256([]byte(name))
		write("contexts/meta/"+hex.EncodeToString(sum[:])+"/meta.json",
			`{"Name":"`+name+`","Endpoints":{"docker":{"Host":"unix:///`+name+`","SkipTLSVerify":false}}}`)
	}
	write("config.json", `{"currentContext":"one","auths":{}}`)
	want("the current context", "unix:///one", Config{})
	want("another in the settings", "unix:///two", Config{Context: "two"})
	t.Setenv("DOCKER_CONTEXT", "two")
	want("another by variable", "unix:///two", Config{})
	t.Setenv("DOCKER_CONTEXT", "default")
	want("the default one", client.DefaultDockerHost, Config{})
	t.Setenv("DOCKER_HOST", "unix:///three")
	want("a host by variable", "unix:///three", Config{})
	want("a host in the settings", "unix:///four", Config{Host: "unix:///four"})
	for what, c := range map[string]Config{"both": {Host: "unix:///x", Context: "one"},
		"an unknown context": {Context: "missing"}, "no address": {Host: "x"}} {
		c.Agent, c.StateDir = "/agent", dir
		if _, err := New(c); err == nil {
			t.Errorf("accepted: %s", what)
		}
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
		text, err := registryAuth(t.Context(), name)
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
		if _, err := registryAuth(t.Context(), name); err == nil || !strings.Contains(err.Error(), "config.json") {
			t.Errorf("%s: %v", image, err)
		}
	}
}
