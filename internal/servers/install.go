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
func (servers *Servers) Install(ctx context.Context, p auth.Principal, r install.Request) (Installed, error) {
	folder, err := r.Check()
	if err != nil {
		return Installed{}, err
	}
	if _, err := servers.revealed(ctx, p.ID, r.Values()); err != nil { // before anything is installed
		return Installed{}, err
	}
	release, err := servers.hold(p)
	if err != nil {
		return Installed{}, err
	}
	defer release()
	if err := servers.free(p, r.Name); err != nil {
		return Installed{}, err
	}
	if err := servers.agreed(ctx, servers.named(p, r.Name), r.Consent, r.Change(folder)); err != nil {
		return Installed{}, err
	}
	r.Consent = nil // to all that follows
	leave, err := servers.installing(p, r.Name, folder)
	if err != nil {
		return Installed{}, err
	}
	defer leave()
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, servers.InstallTimeout)
	defer cancel()
	l, err := servers.Sessions.Open(limited, p, session.OpenRequest{ID: "home"})
	if err != nil {
		return Installed{}, err
	}
	defer l.Release()
	i := install.New(l, r, folder, servers.InstallTimeout)
	found, err := i.Install(limited)
	if err != nil {
		return Installed{Commands: i.Commands(), Log: i.Log()}, err
	}
	a := r.ConnectRequest
	a.Cwd, a.Path = found.Cwd, found.Path
	a.Install = &spec.Install{Type: r.Type, Spec: r.Spec, Folder: folder, Version: found.Version}
	if a.Command == "" {
		if a.Command, err = found.ServerProgram(r); err != nil {
			return Installed{Commands: i.Commands(), Log: i.Log()}, err
		}
	}
	if r.Progress != nil {
		r.Progress("Installed; starting " + strings.Join(append([]string{a.Command}, a.Args...), " "))
	}
	info, err := servers.Connect(ctx, p, a)
	info.Install = a.Install // whatever was connected under that name meanwhile
	return Installed{Info: info, Commands: i.Commands(), Log: i.Log(), Took: time.Since(began)}, err
}

// free says whether a principal may give a connection that name.
func (servers *Servers) free(p auth.Principal, name string) error {
	if err := servers.configure(p); err != nil {
		return err
	}
	if s := servers.named(p, name); s != nil {
		if s.Configured {
			return taken(name)
		}
		return nil
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return servers.owner(p).full()
}

// installing takes a folder for one installation, and shows that it is on its
// way. What is there of the same name, of another connection, is not taken.
func (servers *Servers) installing(p auth.Principal, name, folder string) (leave func(), err error) {
	for _, s := range servers.all(p.ID) {
		if i := s.record().Install; i != nil && i.Folder == folder && s.Name != name {
			return nil, fault.New(fault.InvalidParameters,
				"the folder %s is that of %q; choose another name, or a workdir", folder, s.Name).
				With("argument", "name")
		}
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owner(p)
	if o.installs[folder] {
		return nil, fault.New(fault.InvalidParameters,
			"something is being installed into %s already; wait until that is done", folder).With("argument", "name")
	}
	if o.installs == nil {
		o.installs = map[string]bool{}
	}
	o.installs[folder] = true
	o.setInstalling(name, true)
	return func() {
		servers.mu.Lock()
		defer servers.mu.Unlock()
		delete(o.installs, folder)
		o.setInstalling(name, false)
	}, nil
}

// setInstalling shows that the server of a name is being installed, or no longer is.
// The lock of the Servers is held.
func (o *owner) setInstalling(name string, yes bool) {
	for _, s := range o.servers {
		if s.Name == name {
			s.mu.Lock()
			s.installing = yes
			s.announce()
			s.mu.Unlock()
		}
	}
}
