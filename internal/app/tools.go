package app

import (
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/toolview"
)

// views returns what the settings say that clients are shown of third-party servers.
func views(c *config.Config) (toolview.Settings, error) {
	of := c.Tools.For
	s := toolview.Settings{Mode: toolview.Mode(c.Tools.Mode), Limit: c.Tools.Limit, Users: toolview.Mode(of.Users),
		Services: toolview.Mode(of.Services), Principals: map[string]toolview.Mode{}}
	for name, mode := range of.Principals {
		id, err := auth.ParseID(name)
		if err != nil {
			return s, fault.New(fault.Configuration, "%s: tools_for: principals: %v", c.File, err)
		}
		if _, twice := s.Principals[id]; twice {
			return s, fault.New(fault.Configuration, "%s: tools_for: principals: %q is named twice", c.File, id)
		}
		s.Principals[id] = toolview.Mode(mode)
	}
	return s, nil
}
