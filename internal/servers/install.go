package servers

import (
	"context"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Installed is what an installation printed.
type Installed struct {
	Info
	Commands []string // that were run, as they would be typed
	Log      string   // its end
	Took     time.Duration
}

// Install installs a server in its owner's home, and connects it. An
// installation that fails is a fault with its output; nothing is connected then.
func (b *Servers) Install(ctx context.Context, p auth.Principal, r install.Request) (Installed, error) {
	folder, err := r.Check()
	if err != nil {
		return Installed{}, err
	}
	if _, err := b.revealed(ctx, p.ID, r.Values()); err != nil { // before anything is installed
		return Installed{}, err
	}
	release, err := b.hold(p)
	if err != nil {
		return Installed{}, err
	}
	defer release()
	if err := b.free(p, r.Name); err != nil {
		return Installed{}, err
	}
	if err := b.agreed(ctx, b.named(p, r.Name), r.Consent, r.Change(folder)); err != nil {
		return Installed{}, err
	}
	r.Consent = nil // to all that follows
	leave, err := b.installing(ctx, p, r.Name, folder)
	if err != nil {
		return Installed{}, err
	}
	defer leave()
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, b.InstallTimeout)
	defer cancel()
	l, err := b.Sessions.Open(limited, p, session.Ask{ID: "home"})
	if err != nil {
		return Installed{}, err
	}
	defer l.Release()
	i := install.New(l, r, folder, b.InstallTimeout)
	found, err := i.Install(limited)
	if err != nil {
		return Installed{Commands: i.Commands(), Log: i.Log()}, err
	}
	a := r.Ask
	a.Cwd, a.Path = found.Cwd, found.Path
	a.Install = &spec.Install{Type: r.Type, Spec: r.Spec, Folder: folder, Version: found.Version}
	if a.Command == "" {
		if a.Command, err = found.Only(r); err != nil {
			return Installed{Commands: i.Commands(), Log: i.Log()}, err
		}
	}
	if r.Progress != nil {
		r.Progress("Installed; starting " + strings.Join(append([]string{a.Command}, a.Args...), " "))
	}
	info, err := b.Connect(ctx, p, a)
	info.Install = a.Install // whatever was connected under that name meanwhile
	return Installed{Info: info, Commands: i.Commands(), Log: i.Log(), Took: time.Since(began)}, err
}

// free says whether a principal may give a connection that name.
func (b *Servers) free(p auth.Principal, name string) error {
	if err := b.configure(p); err != nil {
		return err
	}
	n := 0
	for _, s := range b.all(p.ID) {
		if s.name == name {
			if s.configured {
				return taken(name)
			}
			return nil
		}
		if !s.configured {
			n++
		}
	}
	return crowded(n)
}

// installing takes a folder for one installation, and shows that it is on its
// way. What is there of the same name, of another connection, is not taken.
func (b *Servers) installing(ctx context.Context, p auth.Principal, name, folder string) (leave func(), err error) {
	for _, s := range b.all(p.ID) {
		s.mu.Lock()
		i := s.rec.Install
		s.mu.Unlock()
		if i != nil && i.Folder == folder && s.name != name {
			return nil, fault.New(fault.InvalidParameters,
				"the folder %s is that of %q; choose another name, or a workdir", folder, s.name).With("argument", "name")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owner(p)
	if o.installs[folder] {
		return nil, fault.New(fault.InvalidParameters,
			"something is being installed into %s already; wait until that is done", folder).With("argument", "name")
	}
	if o.installs == nil {
		o.installs = map[string]bool{}
	}
	o.installs[folder] = true
	for _, s := range o.servers {
		if s.name == name {
			s.mu.Lock()
			s.installs = true
			s.mu.Unlock()
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(o.installs, folder)
		for _, s := range o.servers {
			if s.name == name {
				s.mu.Lock()
				s.installs = false
				s.mu.Unlock()
			}
		}
	}, nil
}
