package app

import (
	"context"
	"fmt"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/quota"
	"sandlot/internal/store"
)

// setQuotas puts the quotas of the settings into effect. Services are known by their stored tokens, before their first
// requests.
func (m maker) setQuotas(ctx context.Context, db *store.DB) error {
	tokens, err := db.Tokens(ctx)
	if err != nil {
		return fmt.Errorf("reading which principals are services: %w", err)
	}
	for _, t := range tokens {
		if t.Service {
			m.now.quotas.AddService(t.Owner)
		}
	}
	m.now.quotas.Set(m.parsed.quotas)
	return nil
}

// quotas returns the quotas of the settings. An exception has what it does not name from the default for
// users.
func quotas(c *config.Config) (quota.Settings, error) {
	s := quota.Settings{Users: overlay(quota.Limits{}, c.Quotas.Users),
		Services: overlay(quota.Limits{}, c.Quotas.Services), Principals: map[string]quota.Limits{}}
	for name, exception := range c.Quotas.Principals {
		id, err := auth.ParseID(name)
		if err != nil {
			return s, fault.New(fault.Configuration, "%s: quotas: principals: %v", c.File, err)
		}
		if _, twice := s.Principals[id]; twice {
			return s, fault.New(fault.Configuration, "%s: quotas: principals: %s is named twice", c.File,
				fmt.Sprintf("%q", id))
		}
		s.Principals[id] = overlay(s.Users, exception)
	}
	return s, nil
}

// overlay returns the limits with the values of a quota in the settings.
func overlay(l quota.Limits, q config.Quota) quota.Limits {
	for _, f := range []struct{ to, from *int }{{&l.Sessions, q.Sessions}, {&l.MemoryMB, q.MemoryMB},
		{&l.DiskMB, q.DiskMB}, {&l.TrafficMBPerDay, q.TrafficMBPerDay},
		{&l.Connections, q.Connections}, {&l.Secrets, q.Secrets}, {&l.Calls, q.Calls},
		{&l.CallsPerMinute, q.CallsPerMinute}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if q.CPUs != nil {
		l.CPUs = *q.CPUs
	}
	return l
}
