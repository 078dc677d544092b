package config

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Quotas has the settings of what principals may hold.
type Quotas struct {
	Users    Quota `yaml:"users"`
	Services Quota `yaml:"services"`
	// Principals has the exceptions, by the name or the id of a principal.
	Principals map[string]Quota `yaml:"principals"`
}

// Quota is what one principal may hold; nil: the default for the principal, or no limit.
type Quota struct {
	Sessions        *int     `yaml:"sessions"`
	MemoryMB        *int     `yaml:"memory_mb"`
	CPUs            *float64 `yaml:"cpus"`
	DiskMB          *int     `yaml:"disk_mb"`
	TrafficMBPerDay *int     `yaml:"traffic_mb_per_day"`
	Connections     *int     `yaml:"connections"`
	Secrets         *int     `yaml:"secrets"`
	Calls           *int     `yaml:"calls"`
	CallsPerMinute  *int     `yaml:"calls_per_minute"`
}

// maxQuota bounds the values of quotas, so that sums do not overflow.
const maxQuota = 1 << 30

// parseQuotas reads the section quotas.
func (c *Config) parseQuotas(n *yaml.Node) error {
	var q Quotas
	if err := decodeSection(n, &q); err != nil {
		return fmt.Errorf("must have users, services and principals, each with sessions, memory_mb, cpus, "+
			"disk_mb, traffic_mb_per_day, connections, secrets, calls or calls_per_minute: %w", err)
	}
	all := map[string]Quota{"users": q.Users, "services": q.Services}
	for name, quota := range q.Principals {
		all["principals: "+name] = quota
	}
	for place, quota := range all {
		if err := quota.check(); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	c.Quotas = q
	return nil
}

func (q Quota) check() error {
	for _, n := range []*int{q.Sessions, q.MemoryMB, q.DiskMB, q.TrafficMBPerDay, q.Connections, q.Secrets, q.Calls,
		q.CallsPerMinute} {
		if n != nil && (*n < 1 || *n > maxQuota) {
			return fmt.Errorf("%d must be from 1 to %d; leave a quota out to have none", *n, maxQuota)
		}
	}
	if q.CPUs != nil && !(*q.CPUs > 0 && *q.CPUs <= maxQuota) {
		return errors.New("cpus must be more than 0; leave it out to have no quota")
	}
	return nil
}
