package app

import (
	"fmt"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/toolview"
)

// views returns what the settings say that clients are shown of third-party servers.
func views(c *config.Config) (s toolview.Settings, err error) {
	invalid := func(place string, err error) error {
		return fault.New(fault.Configuration, "%s: tools_for: %s: %v", c.File, place, err)
	}
	s = toolview.Settings{Mode: toolview.Mode(c.Tools.Mode), Limit: c.Tools.Limit,
		Principals: map[string]toolview.Mode{}}
	if s.Users, err = toolview.Parse(c.Tools.For.Users); err != nil {
		return s, invalid("users", err)
	}
	if s.Services, err = toolview.Parse(c.Tools.For.Services); err != nil {
		return s, invalid("services", err)
	}
	for name, text := range c.Tools.For.Principals {
		id, err := auth.ParseID(name)
		if _, twice := s.Principals[id]; twice && err == nil {
			err = fmt.Errorf("%q is named twice", id)
		}
		if err == nil {
			s.Principals[id], err = toolview.Parse(text)
		}
		if err != nil {
			return s, invalid("principals: "+name, err)
		}
	}
	return s, nil
}
