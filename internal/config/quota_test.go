package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Quotas are read as they are, and a wrong value or name is refused with its place.
func TestQuotas(t *testing.T) {
	load := func(text string) (*Config, error) {
		file := filepath.Join(t.TempDir(), "sandlot.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(Source{File: file})
	}
	c, err := load("quotas:\n  users: {sessions: 2, cpus: 1.5}\n  principals:\n    ann: {memory_mb: 10}\n")
	if err != nil || *c.Quotas.Users.Sessions != 2 || *c.Quotas.Users.CPUs != 1.5 || c.Quotas.Users.Secrets != nil ||
		*c.Quotas.Principals["ann"].MemoryMB != 10 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := load("quotas:\n"); err != nil {
		t.Errorf("an empty section: %v", err)
	}
	for text, place := range map[string]string{
		"users: {session: 2}": "session", "users: {sessions: 0}": "users", "users: {sessions: -1}": "users",
		"services: {cpus: 0}": "services", "services: {cpus: .nan}": "cpus", "users: {calls: 99999999999}": "users",
		"principals: {ann: {secrets: 0}}": "ann", "users: {disk_mb: 0}": "users",
		"services: {traffic_mb_per_day: -1}": "services",
		"users: {traffic_mb: 5}":             "per_day", "user: {sessions: 1}": "user", "[]": "quotas",
		"users: 3":                "users",
		"users: {sessions: many}": "many",
	} {
		if _, err := load("quotas:\n  " + text + "\n"); err == nil || !strings.Contains(err.Error(), place) ||
			!strings.Contains(err.Error(), "quotas") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
