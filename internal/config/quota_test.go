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

// A budget of memory in which no session fits is an error or a note of the start, which names it and what would fit.
func TestMemoryBudgets(t *testing.T) {
	for text, want := range map[string]string{
		"max_total_memory_mb: 512":                                             "error: no session fits into it: the smallest flavor, small, has 1024 MB",
		"max_total_memory_mb: 1024":                                            "",
		"max_total_memory_mb: 1500\ndefault_flavor: medium":                    "default flavor, medium",
		"max_total_memory_mb: 512\nflavors: {tiny: {cpus: 1, memory_mb: 256}}": "default flavor, small",
		"container_memory_limit: 256m\nmax_total_memory_mb: 300":               "",
		"quotas: {users: {memory_mb: 512}}":                                    "quotas: users: memory_mb is 512: no session fits",
		"quotas: {services: {memory_mb: 512}}":                                 "quotas: services: memory_mb is 512: no session fits",
		"quotas: {principals: {ann: {memory_mb: 512}}}":                        "quotas: principals: ann: memory_mb is 512",
		"quotas: {users: {memory_mb: 1024}}":                                   "",
		"pool_memory_mb: 512":                                                  "pool_memory_mb is 512",
		"pool_memory_mb: 512\npool_size: 0":                                    "",
	} {
		c, err := load(t, text, nil, nil)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = strings.Join(c.Notes, "; ")
		}
		wanted, isError := strings.CutPrefix(want, "error: ")
		if (err != nil) != isError || !strings.Contains(got, wanted) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
