package servers

import (
	"context"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/spec"
)

// Installed is the result of an installation.
type Installed struct {
	Info
	Commands []string // the command lines that were run
	Log      string   // the end of what they printed
	Took     time.Duration
}

// Install installs a server in its owner's home session, and connects it. If the installation fails,
// the fault has the end of its output, and nothing is connected.
func (servers *Servers) Install(ctx context.Context, p auth.Principal, r install.Request) (Installed, error) {
	folder, err := r.Check()
	if err != nil {
		return Installed{}, err
	}
	values, err := servers.revealed(ctx, p.ID, r.Values())
	if err != nil { // before anything is installed
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
	if err := servers.askConsent(ctx, servers.named(p, r.Name), r.Consent, r.Change(folder)); err != nil {
		return Installed{}, err
	}
	r.Consent = nil // Connect need not ask for it again
	end, err := servers.beginInstall(p, r.Name, folder)
	if err != nil {
		return Installed{}, err
	}
	defer end()
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, servers.InstallTimeout)
	defer cancel()
	l, err := servers.Sessions.Wake(limited, p, "home")
	if err != nil {
		return Installed{}, err
	}
	defer l.Release()
	servers.Sessions.Narrow(l.ID(), p.Scope) // what is installed may leave something behind
	if err := l.NoteSecrets(r.Values().Env); err != nil {
		return Installed{}, err
	}
	i := install.New(l, r, folder, servers.InstallTimeout, values.Env)
	found, err := i.Install(limited)
	if err != nil {
		return Installed{Commands: i.Commands(), Log: i.Log()}, err
	}
	a := r.ConnectRequest
	a.Cwd, a.Path = found.Cwd, found.Path
	a.Install = &spec.Install{Type: r.Type, Spec: r.Spec, Folder: folder, Version: found.Version, SHA256: r.SHA256}
	if a.Command == "" {
		if a.Command, err = found.ServerProgram(r); err != nil {
			return Installed{Commands: i.Commands(), Log: i.Log()}, err
		}
	}
	if r.Progress != nil {
		r.Progress("Installed; starting " + strings.Join(append([]string{a.Command}, a.Args...), " "))
	}
	info, err := servers.Connect(ctx, p, a)
	info.Install = a.Install // also if another call has replaced the server since
	return Installed{Info: info, Commands: i.Commands(), Log: i.Log(), Took: time.Since(began)}, err
}

// free returns an error if the principal must not use a name for a server, or may add no more servers.
func (servers *Servers) free(p auth.Principal, name string) error {
	if err := servers.configure(p); err != nil {
		return err
	}
	if s := servers.named(p, name); s != nil {
		if s.Configured {
			return nameTaken(name)
		}
		return nil
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	return servers.full(p.ID, servers.owner(p))
}

// beginInstall reserves a folder for one installation until end is called, and shows the server as being
// installed. It refuses the folder of another server.
func (servers *Servers) beginInstall(p auth.Principal, name, folder string) (end func(), err error) {
	for _, s := range servers.all(p.ID) {
		if i := s.record().Install; i != nil && i.Folder == folder && s.Name != name {
			return nil, fault.Argument("name",
				"the folder %s is that of %q; choose another name, or a workdir", folder, s.Name)
		}
	}
	servers.mu.Lock()
	defer servers.mu.Unlock()
	o := servers.owner(p)
	if o.installs[folder] {
		return nil, fault.Argument("name",
			"another installation into %s is running; wait until it ends", folder)
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

// setInstalling sets whether the server with that name is shown as being installed. The caller holds the
// mu of the Servers.
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
