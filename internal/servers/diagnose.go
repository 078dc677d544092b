package servers

import (
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/spec"
)

// diagnosis returns what package diagnosis needs to explain the server's failures. The caller holds s.mu.
func (s *server) diagnosis() *diagnosis.Server {
	d := &diagnosis.Server{Identity: s.Identity, Status: s.Status,
		Launched: s.start != nil, Settings: s.Settings, Spec: s.rec.Spec, Values: s.Values, Prefix: s.prefix(),
		Catalog: s.rec.Catalog, IsOperator: s.owner.HasRole(auth.Logs)}
	if s.Settings.Kind == spec.Stdio && s.shows(s.owner) {
		d.LogTail = func() string { tail, _ := s.log.Tail(20); return tail }
	}
	return d
}

// fault returns a fault that the server caused, with advice and the end of its log.
func (s *server) fault(kind fault.Kind, cause error, format string, args ...any) *fault.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diagnosis().Failure(kind, cause, format, args...)
}

// withAdvice adds advice to an error that the server caused.
func (s *server) withAdvice(err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diagnosis().WithAdvice(err)
}

// lastWords returns the end of the server's log, for a fault.
func (s *server) lastWords() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diagnosis().LastWords()
}

// unusable returns why the server cannot be started; nil: it can. The caller holds s.mu.
func (s *server) unusable() error { return s.diagnosis().Unusable() }

// shows reports whether a principal may see the server's log: that of a program on the host is for the
// operator. The caller holds s.mu.
func (s *server) shows(p auth.Principal) bool {
	return !s.Configured || s.Settings.Where != spec.OnHost || p.HasRole(auth.Logs)
}

// prefix returns the prefix of the names of the server's tools. The caller holds s.mu.
func (s *server) prefix() string {
	if p := s.Settings.Prefix; p != nil && *p != "" {
		return *p + "_"
	} else if p != nil {
		return ""
	}
	return "ext_" + catalog.SafeName(s.ID) + "_"
}

// WhyMissing implements tool.MissingExplainer: it returns why a tool cannot be called that one of the
// principal's servers has, had, or may have when it runs; nil: none of them.
//
// Models call tools that they saw a moment ago, and "unknown" makes them guess names. A tool of somebody
// else's server is answered like one that never existed.
func (servers *Servers) WhyMissing(p auth.Principal, name string) error {
	if err := servers.configure(p); err != nil {
		return err
	}
	var why *fault.Error
	most := -1
	for _, s := range servers.all(p.ID) {
		s.mu.Lock()
		f, certainty := s.diagnosis().MissingTool(name)
		s.mu.Unlock()
		if f != nil && certainty > most {
			why, most = f, certainty
		}
	}
	if why == nil {
		return nil
	}
	return why.With("tool", spec.ClipName(name))
}
