package config

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// storeKey is the setting whose value may have a password. No text of this package has it.
const storeKey = "store"

// database is the setting of the store's database. Its text has no password.
func database(target *secret.Value) accessor {
	return accessor{func(v string) error {
		u, err := url.Parse(v)
		if v != "" && (err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql") {
			return errors.New("must be empty, or the URL of a PostgreSQL database such as " +
				"postgres://USER:PASSWORD@HOST/DATABASE, with %40 for @ and %2F for / in the password")
		}
		*target = secret.Value(v)
		return nil
	}, func() string { return withoutPassword(target.Reveal()) }}
}

// keyText is a setting with a key. Its text is not shown.
func keyText(target *secret.Value) accessor {
	return accessor{func(v string) error {
		if v != "" {
			if _, err := secret.ParseKey(v); err != nil {
				return err
			}
		}
		*target = secret.Value(v)
		return nil
	}, func() string {
		if *target == "" {
			return ""
		}
		return "…"
	}}
}

var keyName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
})

// readKeyName checks the name of a key in the keyring.
func readKeyName(v string) (string, error) {
	if v != "" && !keyName().MatchString(v) {
		return "", errors.New("must be a name of 1 to 64 letters, digits, - and _, such as sandlot")
	}
	return v, nil
}

// finishSecrets checks that the settings of the key of secrets fit together.
func (c *Config) finishSecrets() error {
	s := &c.Server
	places := 0
	for _, v := range []string{s.SecretsKey.Reveal(), s.SecretsKeyFile, s.SecretsKeyring} {
		if v != "" {
			places++
		}
	}
	switch {
	case places > 1:
		return fault.New(fault.Configuration, "secrets.key, secrets.key_file and secrets.keyring: set one of them")
	case s.SecretsNewKey != "" && s.SecretsKey == "":
		return fault.New(fault.Configuration, "secrets.new_key: it replaces secrets.key, which is not set")
	}
	return nil
}

// withoutPassword returns the URL of a database without what may be a password.
func withoutPassword(v string) string {
	if v == "" {
		return ""
	}
	u, err := url.Parse(v)
	if err != nil || u.Host == "" && u.Path == "" {
		return "(not shown: it may have a password)"
	}
	query := u.Query()
	for key := range query {
		if strings.Contains(strings.ToLower(key), "password") {
			query.Set(key, "xxxxx")
		}
	}
	u.RawQuery = query.Encode()
	return u.Redacted()
}

// shown returns the value of a setting for messages.
func shown(key, value string) string {
	if key == storeKey {
		return withoutPassword(value)
	}
	if key == telemetryHeadersKey || key == "secrets.key" || key == "secrets.new_key" {
		return "…"
	}
	return value
}
