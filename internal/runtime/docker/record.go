package docker

import (
	"context"
	"fmt"
	"path/filepath"

	"sandlot/internal/dockercommand"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

// record is what this runtime stores of a sandbox.
type record struct {
	specfile.Record
	Daemon daemonID `json:"daemon"` // which has the container
	// Separate: the sandbox was made for a daemon that does not see the server's files.
	Separate bool `json:"separate,omitempty"`
}

func (b *box) record() record {
	return record{specfile.Of(b.spec, b.runtime.agent.Kept(b.agent)), b.daemon, b.separate}
}

// daemonID tells daemons apart.
type daemonID struct {
	Host string `json:"host"` // its address
	ID   string `json:"id"`   // what it says of itself, whatever its address is
}

// checkDaemon returns an error if another daemon has the container of a record: that this one has no such container
// would mean nothing. A daemon that has come in the place of that one, at its address, has taken its place.
func (r *Runtime) checkDaemon(ctx context.Context, rec record) error {
	host := r.client.DaemonHost()
	if rec.Daemon.Host == host || rec.Daemon.Host == "" {
		return nil
	}
	d, err := r.ask(ctx)
	if err != nil || d.identity.ID == rec.Daemon.ID {
		return err
	}
	return fmt.Errorf("%w: the container of the sandbox is on the Docker daemon at %s, and this one, at %s, is "+
		"another: set docker.host to %[2]s, or DOCKER_HOST for `sandlot stop --sessions`; if that daemon is gone for "+
		"good, remove the folder %[4]s", sandbox.ErrUnavailable, rec.Daemon.Host, host, r.sandboxDir(rec.ID))
}

func daemonFile(stateDir string) string { return filepath.Join(stateDir, "docker", "daemon") }

// Searched implements sandbox.Doctor.
func (r *Runtime) Searched(ctx context.Context) (chosen string, tried []string) {
	if r.client.IsSearched() {
		chosen = r.client.DaemonHost()
	}
	for _, a := range dockercommand.Look(ctx) {
		tried = append(tried, a.String())
	}
	return chosen, tried
}
