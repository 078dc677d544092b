package app

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/forward"
	"sandlot/internal/atomicfile"
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/question"
	"sandlot/internal/replica"
	"sandlot/internal/secret"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/store"
)

// maxReplicaConns is how many connections other servers may have to this one.
const maxReplicaConns = 8192

// replicas are what a server has that shares its database with others.
type replicas struct {
	listener net.Listener
	member   *replica.Member
	forward  *forward.Forwarder
	store    *store.DB

	parts atomic.Pointer[parts] // set when they are there, before the first request
}

// parts are the parts of a server that have something of principals in memory.
type parts struct {
	sessions  *session.Sessions
	snapshots *snapshot.Snapshots
	questions *question.Questions
}

// keptOfAll are the snapshots, and what is stored of principals for which this server does not act: what their sessions
// and snapshots have, and is here all the same, stays.
type keptOfAll struct {
	*snapshot.Snapshots
	store *store.DB
}

// Kept implements session.Keeper.
func (k keptOfAll) Kept(ctx context.Context) (workspaces, images []string, err error) {
	workspaces, images, err = k.Snapshots.Kept(ctx)
	if err != nil {
		return nil, nil, err
	}
	ofAll, imagesOfAll, err := k.store.Files(ctx)
	return append(workspaces, ofAll...), append(images, imagesOfAll...), err
}

// checkReplicas returns an error for settings with which servers cannot share a database.
func checkReplicas(c *config.Config) error {
	s := &c.Server
	if s.ReplicaAddress == "" {
		return nil
	}
	need := func(what string) error {
		return fault.New(fault.Configuration, "replicas.address=%q (%s): %s", s.ReplicaAddress,
			c.Origin["replicas.address"], what)
	}
	switch {
	case !store.IsPostgres(s.Store.Reveal()):
		return need("servers share a PostgreSQL database: set store to its URL, since SQLite is one server's")
	case auth.Mode(s.Auth) != auth.Required:
		return need("set auth: required on all servers")
	case s.SecretsKeyFile == "" && s.SecretsKey == "" && s.SecretsKeyring == "":
		return need("all servers need the same key for secrets: set secrets.key_file or secrets.key to it")
	case s.SecretsNewKey != "":
		return need("the key for secrets cannot be changed while servers share a database: remove secrets.new_key")
	case c.Events.KeepMax != 0:
		return need("events of several servers are not stored yet: set events.keep_max: 0, and telemetry.otlp_endpoint " +
			"if they are to be kept")
	}
	return nil
}

// openReplicas listens for the other servers, and becomes one of them; nil: the settings want no others.
func (m maker) openReplicas(ctx context.Context) (_ *replicas, err error) {
	c := &m.c.Server
	if c.ReplicaAddress == "" {
		return nil, nil
	}
	r := &replicas{}
	certificate, fingerprint, err := forward.NewCertificate()
	if err != nil {
		return nil, err
	}
	if r.listener, err = net.Listen("tcp", c.ReplicaAddress); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "replicas.address: cannot listen on %s: %v", c.ReplicaAddress, err)
	}
	m.closing.add(func() error { r.listener.Close(); return nil })
	id, err := replicaID(c.StateDir)
	if err != nil {
		return nil, err
	}
	postgres, name, err := store.PostgresConfig(c.Database())
	if err != nil {
		return nil, err
	}
	r.member, err = replica.Join(ctx, replica.Config{Postgres: postgres, ID: id, Address: c.ReplicaAddress,
		Fingerprint: fingerprint, Version: Version, Claimed: r.load, Kept: r.kept, Log: m.log})
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) && f.Kind == fault.Configuration {
			return nil, err
		}
		return nil, fault.Wrap(fault.Configuration, err, "the PostgreSQL database %s cannot be used: %v", name, err)
	}
	m.closing.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.member.Leave(ctx); err != nil {
			m.log.Warn("this server has not told the others that it ends; they find out", "error", err)
		}
		return nil
	})
	r.forward = forward.New(forward.Config{Owners: owners{r.member}, Certificate: certificate, Log: m.log})
	m.closing.add(func() error { r.forward.Close(); return nil })
	return r, nil
}

// replicaID returns the id of a state folder among those of the servers of a database.
func replicaID(stateDir string) (string, error) {
	id, err := readReplicaID(stateDir)
	if id != "" || err != nil {
		return id, err
	}
	id = hex.EncodeToString(secret.Bytes(16))
	return id, atomicfile.WriteThrough(filepath.Join(stateDir, replicaFile), []byte(id))
}

// replicaFile is the file of the state folder with its id among those of the servers of a database.
const replicaFile = "replica"

// readReplicaID returns the id of a state folder that replicaID has made; empty: it has made none.
func readReplicaID(stateDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, replicaFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) != 32 {
		return "", nil
	}
	return string(text), err
}

// openShared opens the database as one of several servers.
func (m maker) openShared(ctx context.Context) (*store.DB, error) {
	r := m.replicas
	if record, err := restoresOf(m.c, m.log).Pending(); record != nil || err != nil {
		return nil, errors.Join(err, fault.New(fault.Configuration, "a restore is pending in the state folder %s, and "+
			"servers that share a database cannot complete it; while no server runs, run `sandlot restore` again, or start "+
			"this server once without replicas.address", m.c.Server.StateDir))
	}
	db, err := store.OpenMember(ctx, m.c.Server.Database(), r.member)
	if err != nil {
		return nil, err
	}
	r.store = db
	m.closing.add(db.Close)
	r.member.OnDown(db.CloseIdle)
	if err := checkDatabase(ctx, m.c, db, false); err != nil {
		return nil, err
	}
	folder := filepath.Join(m.c.Server.StateDir, "workspaces")
	return db, r.member.Start(ctx, auth.UnitOf, func(id string) bool {
		info, err := os.Stat(filepath.Join(folder, id))
		return id != "" && filepath.IsLocal(id) && err == nil && info.IsDir()
	})
}

// load loads what the database has of a unit for which this server acts from now on, and what a start loads of all.
func (r *replicas) load(ctx context.Context, unit string) error {
	answers, err := r.store.AnswersOf(ctx, unit)
	if err != nil {
		return err
	}
	p := r.parts.Load()
	p.questions.Add(answers)
	return p.sessions.AddDays(ctx, unit)
}

// kept returns the units whose sessions or snapshots are on this machine.
func (r *replicas) kept() map[string]bool {
	units := map[string]bool{}
	if p := r.parts.Load(); p != nil {
		maps.Copy(units, p.sessions.Units())
		maps.Copy(units, p.snapshots.Units())
	}
	return units
}

// server returns the server for the other servers.
func (r *replicas) server(next http.Handler, log *slog.Logger) *http.Server {
	conns := conn.NewLimiterOf(maxReplicaConns, maxReplicaConns)
	r.listener = conns.Listener(r.listener)
	return &http.Server{Handler: r.forward.Handler(next), TLSConfig: r.forward.ServerTLS(),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, ConnContext: conns.ConnContext,
		MaxHeaderBytes: 128 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
}

// lost gets an error when the server must end, since another one acts for its principals.
func (a *App) lost() <-chan error {
	if a.replicas != nil {
		return a.replicas.member.Lost()
	}
	return a.store.Lost()
}

// owners is a replica.Member as package forward wants it.
type owners struct{ *replica.Member }

// Find implements forward.Owners.
func (o owners) Find(ctx context.Context, unit string) (forward.Place, error) {
	p, err := o.Member.Find(ctx, unit)
	return placeOf(p), err
}

// Owned implements forward.Owners.
func (o owners) Owned(unit string, epoch int64) (forward.Place, bool) {
	p, ok := o.Member.Owned(unit, epoch)
	return placeOf(p), ok
}

// Known implements forward.Owners.
func (o owners) Known(ctx context.Context, fingerprint string) bool {
	_, ok := o.Member.Known(ctx, fingerprint)
	return ok
}

func placeOf(p replica.Place) forward.Place {
	return forward.Place{Epoch: p.Epoch, Here: p.Here,
		Peer: forward.Peer{Address: p.Peer.Address, Fingerprint: p.Peer.Fingerprint}}
}

var errNoShared = fault.New(fault.Configuration, "servers share a PostgreSQL database, and the setting store names none")

// Replica is one of the servers of a database.
type Replica = replica.Server

// Replicas returns the servers of the settings' database. No server need run.
func Replicas(ctx context.Context, c *config.Config) ([]Replica, error) {
	where := c.Server.Database()
	if !store.IsPostgres(where) {
		return nil, errNoShared
	}
	postgres, name, err := store.PostgresConfig(where)
	if err != nil {
		return nil, err
	}
	all, err := replica.List(ctx, postgres)
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the PostgreSQL database %s cannot be used: %v", name, err)
	}
	return all, nil
}

// RemovedReplica is what was stored of a server that was removed.
type RemovedReplica = replica.Removed

// RemoveReplica removes a server of the settings' database that does not live, by its address, with what is stored of its
// sessions and snapshots. With dry, it only says what that is.
func RemoveReplica(ctx context.Context, c *config.Config, address string, dry bool) (RemovedReplica, error) {
	where := c.Server.Database()
	if !store.IsPostgres(where) {
		return RemovedReplica{}, errNoShared
	}
	postgres, name, err := store.PostgresConfig(where)
	if err != nil {
		return RemovedReplica{}, err
	}
	r, err := replica.Remove(ctx, postgres, address, dry)
	var f *fault.Error
	if err != nil && !errors.As(err, &f) {
		err = fault.Wrap(fault.Configuration, err, "the PostgreSQL database %s cannot be used: %v", name, err)
	}
	return r, err
}
