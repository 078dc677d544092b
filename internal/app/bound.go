package app

import (
	"sandlot/internal/agent"
	"sandlot/internal/cacerts"
	"sandlot/internal/egress/bound"
)

// boundSettings says what stands in sandboxes for bound secrets.
type boundSettings struct {
	*bound.Terminator
	certificates cacerts.Bundle
}

// Settings implements session.Bound.
func (b boundSettings) Settings(owner, session string) (*agent.Bound, error) {
	s, err := b.Terminator.Settings(owner, session)
	if err != nil || len(s.CA) == 0 {
		return &agent.Bound{}, err
	}
	a, err := b.certificates.Add(s.CA)
	return &agent.Bound{Env: s.Env, CA: s.CA, Bundles: a.Bundles, Files: a.Files, Java: a.Java,
		JavaStores: a.JavaStores}, err
}
