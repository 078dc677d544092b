package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/store"
	"sandlot/internal/store/storetest"
	"sandlot/internal/vault"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
		return
	}
	os.Exit(storetest.Main(m))
}

// a node is a server with its store, whose connections to PostgreSQL a test can cut.
type node struct {
	*Member
	db    *store.DB
	proxy *proxy
}

// join starts a server with the state folder id.
func join(t *testing.T, database, id string, change ...func(*Config)) *node {
	t.Helper()
	p := newProxy(t, database)
	n, err := open(t.Context(), p.url(database), id, change...)
	if err != nil {
		t.Fatal(err)
	}
	n.proxy = p
	t.Cleanup(func() { n.crash() })
	return n
}

// crash ends a server without giving up anything.
func (n *node) crash() {
	n.Member.Close()
	n.db.Close()
}

func open(ctx context.Context, database, id string, change ...func(*Config)) (*node, error) {
	config, _, err := store.PostgresConfig(database)
	if err != nil {
		return nil, err
	}
	c := Config{Postgres: config, ID: id, Address: id + ":7443", Fingerprint: "f" + id, Version: "1",
		Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	m, err := Join(ctx, c)
	if err != nil {
		return nil, err
	}
	n := &node{Member: m}
	if n.db, err = store.OpenMember(ctx, database, m); err != nil {
		m.Close()
		return nil, err
	}
	m.OnDown(n.db.CloseIdle)
	return n, m.Start(ctx, auth.UnitOf, func(id string) bool { return id == "workspace of "+c.ID })
}

// write changes something of a unit, as its owner.
func (n *node) write(ctx context.Context, unit, name string) error {
	return n.db.PutSecret(ctx, vault.Record{Owner: unit, Name: name, Sealed: []byte("sealed"), Created: time.Now()})
}

func (n *node) find(t *testing.T, unit string) Place {
	t.Helper()
	p, err := n.Find(t.Context(), unit)
	if err != nil {
		t.Fatalf("%s: %v", unit, err)
	}
	return p
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1500 {
		if is() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("after 30 s still not: %s", what)
}

// TestOwner: one server owns a unit, another one finds it there, and replaces it when it is dead. The old owner's changes
// are refused then.
func TestOwner(t *testing.T) {
	database := storetest.Database(t)
	a, b := join(t, database, "a"), join(t, database, "b")
	first := a.find(t, "user:ann")
	if first.Here == nil || first.Epoch == 0 {
		t.Fatalf("not claimed: %+v", first)
	}
	if p := b.find(t, "user:ann"); p.Here != nil || p.Peer.Address != "a:7443" || p.Peer.Fingerprint != "fa" ||
		p.Epoch != first.Epoch {
		t.Errorf("the other one finds %+v", p)
	}
	if _, ok := a.Owned("user:ann", first.Epoch); !ok {
		t.Error("the owner does not know that it is")
	}
	if _, ok := b.Owned("user:ann", first.Epoch); ok {
		t.Error("the other one is the owner too")
	}
	if err := a.write(t.Context(), "user:ann", "BY_A"); err != nil {
		t.Error(err)
	}
	if err := a.write(t.Context(), "user:ann/guest", "BY_A"); err != nil {
		t.Errorf("for a user of the unit: %v", err)
	}
	if err := b.write(t.Context(), "user:ann", "BY_B"); !fault.Is(err, fault.Connection) {
		t.Errorf("the other one's change: %v", err)
	}
	if err := b.db.RemoveSecret(t.Context(), "user:ann", "BY_A"); !fault.Is(err, fault.Connection) {
		t.Errorf("the other one's removal: %v", err)
	}
	// The connection with the lock breaks, and does not come back. The connections of the store stay.
	a.proxy.refuse(true)
	a.proxy.cutFirst()
	var second Place
	until(t, "PostgreSQL notices it, and the next call replaces the owner", func() bool {
		b.Forget("user:ann")
		second = b.find(t, "user:ann")
		return second.Here != nil
	})
	if second.Epoch <= first.Epoch {
		t.Errorf("%+v, then %+v", first, second)
	}
	if first.Here.Err() == nil || !errors.Is(context.Cause(first.Here), ErrLost) {
		t.Error("the old owner goes on")
	}
	if err := b.write(t.Context(), "user:ann", "BY_B"); err != nil {
		t.Error(err)
	}
	a.proxy.refuse(false)
	if err := <-a.Lost(); !errors.Is(err, errTaken) {
		t.Errorf("the old owner ends because of: %v", err)
	}
	if err := a.write(t.Context(), "user:ann", "LATE"); err == nil {
		t.Error("the old owner has changed something")
	}
	if _, err := a.Find(t.Context(), "user:bob"); err == nil {
		t.Error("the old owner claims another unit")
	}
}

// TestGuard: a connection that has not noticed anything writes nothing for a unit that was claimed by another server, be
// it in a transaction that began before.
func TestGuard(t *testing.T) {
	database := storetest.Database(t)
	a := join(t, database, "a")
	a.find(t, "user:ann")
	config, _, _ := store.PostgresConfig(database)
	late, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close(context.Background())
	if err := a.Attach(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	tx, err := late.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM secrets`); err != nil {
		t.Fatal(err)
	}
	a.crash()
	b := join(t, database, "b")
	b.find(t, "user:ann")
	if _, err := tx.Exec(t.Context(), `INSERT INTO traffic (owner, day, sent, received) VALUES ('user:ann', 1, 1, 1)`); err == nil ||
		!strings.Contains(err.Error(), "SL421") {
		t.Errorf("a late change: %v", err)
	}
}

// TestBreak: a server whose connection breaks for a moment stays the owner. What it does for units that another server
// could have claimed ends; what only it has goes on.
func TestBreak(t *testing.T) {
	database := storetest.Database(t)
	a := join(t, database, "a", func(c *Config) { c.Kept = func() map[string]bool { return map[string]bool{"user:kept": true} } })
	b := join(t, database, "b")
	b.patience = time.Minute
	ann, kept := a.find(t, "user:ann"), a.find(t, "user:kept")
	generation := a.Generation()
	a.proxy.cut()
	until(t, "the loss is noticed", func() bool { return a.Generation() > generation })
	if p := b.find(t, "user:ann"); p.Here != nil {
		t.Error("another server has taken the unit at once")
	}
	until(t, "the server is back", func() bool { return a.Usable() == nil })
	if ann.Here.Err() == nil || kept.Here.Err() != nil {
		t.Errorf("what goes on: %v, %v", ann.Here.Err(), kept.Here.Err())
	}
	if again := a.find(t, "user:ann"); again.Here == nil || again.Epoch != ann.Epoch || again.Here.Err() != nil {
		t.Errorf("afterwards: %+v", again)
	}
	until(t, "it writes", func() bool { return a.write(t.Context(), "user:ann", "BACK") == nil })
}

// TestPinned: a unit with sessions is never claimed by a server without their files.
func TestPinned(t *testing.T) {
	database := storetest.Database(t)
	a, b := join(t, database, "a"), join(t, database, "b")
	for _, unit := range []string{"user:ann", "user:svc", "user:sv"} {
		a.find(t, unit)
	}
	for _, owner := range []string{"user:ann", "user:svc/guest"} {
		if err := a.db.PutSession(t.Context(), session.Record{ID: "of " + owner, Owner: owner,
			Workspace: "workspace of a"}); err != nil {
			t.Fatal(err)
		}
	}
	a.crash()
	for _, unit := range []string{"user:ann", "user:svc"} {
		if _, err := b.Find(t.Context(), unit); !fault.Is(err, fault.Connection) || !strings.Contains(err.Error(), "a:7443") {
			t.Errorf("%s, whose server is away: %v", unit, err)
		}
	}
	if p := b.find(t, "user:sv"); p.Here == nil {
		t.Error("a unit without sessions is not claimed")
	}
	again := join(t, database, "a")
	if p := b.find(t, "user:ann"); p.Here != nil || p.Peer.Number != again.number {
		t.Errorf("when the server is back: %+v", p)
	}
	if p := again.find(t, "user:svc"); p.Here == nil {
		t.Error("it does not own what it owned")
	}
	if p := again.find(t, "user:sv"); p.Here != nil {
		t.Error("it owns what another one has claimed")
	}
}

// TestAlone: what a server without replicas has left is taken over by the server of its state folder alone; and a server
// without replicas does not come back to what may be on several machines.
func TestAlone(t *testing.T) {
	database := storetest.Database(t)
	alone, err := store.OpenServer(t.Context(), database, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := alone.PutSession(t.Context(), session.Record{ID: "1", Owner: "user:ann", Workspace: "workspace of a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t.Context(), database, "b"); !fault.Is(err, fault.Configuration) {
		t.Errorf("beside a server that is alone: %v", err)
	}
	alone.Close()
	b := join(t, database, "b")
	if _, err := b.Find(t.Context(), "user:ann"); !fault.Is(err, fault.Connection) {
		t.Errorf("on a server without the files: %v", err)
	}
	a := join(t, database, "a")
	if p := a.find(t, "user:ann"); p.Here == nil {
		t.Error("not taken over")
	}
	if p := b.find(t, "user:ann"); p.Peer.Slot != a.slot {
		t.Errorf("found at %+v", p)
	}
	if _, err := store.OpenServer(t.Context(), database, slog.New(slog.DiscardHandler)); !fault.Is(err, fault.Configuration) {
		t.Errorf("a server that is alone, beside replicas: %v", err)
	}
	a.crash()
	if err := b.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	b.db.Close()
	_, err = store.OpenServer(t.Context(), database, slog.New(slog.DiscardHandler))
	if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "replicas.address") {
		t.Errorf("alone, beside sessions of a server with replicas: %v", err)
	}
	for i, folder := range []string{"a", ""} { // the folder with the files; then nothing is left of the others
		if i == 1 {
			again := join(t, database, "a")
			again.find(t, "user:ann")
			if err := again.db.RemoveSession(t.Context(), "1"); err != nil {
				t.Error(err)
			}
			again.crash()
		}
		alone, err = store.OpenServerOf(t.Context(), database, folder, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("alone, with the folder %q: %v", folder, err)
		}
		if records, err := alone.Sessions(t.Context()); err != nil || len(records) != 1-i {
			t.Errorf("%v %v", records, err)
		}
		alone.Close()
	}
}

// ofSnapshot is a snapshot with a workspace.
func ofSnapshot(owner, workspace string) snapshot.Record {
	return snapshot.Record{ID: "of " + owner, Owner: owner, Name: owner, Created: time.Now(),
		Content: session.Content{Image: "image in " + workspace, Workspace: workspace}}
}

// TestSnapshotsAlone: a server takes over what a server without replicas has left of a unit that has snapshots alone. What
// belongs to units of others is known, though it is not this server's.
func TestSnapshotsAlone(t *testing.T) {
	database := storetest.Database(t)
	alone, err := store.OpenServer(t.Context(), database, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []snapshot.Record{ofSnapshot("user:ann", "workspace of a"), ofSnapshot("user:bob", "gone")} {
		if err := alone.PutSnapshot(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	alone.Close()
	b := join(t, database, "b")
	if records, err := b.db.Snapshots(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("without the files: %v %v", records, err)
	}
	workspaces, images, err := b.db.Files(t.Context())
	if err != nil || len(workspaces) != 2 || len(images) != 2 {
		t.Errorf("of all: %q %q %v", workspaces, images, err)
	}
	a := join(t, database, "a")
	if records, err := a.db.Snapshots(t.Context()); err != nil || len(records) != 1 {
		t.Errorf("with the files, beside another server: %v %v", records, err)
	}
	a.find(t, "user:ann")
	if _, err := a.Find(t.Context(), "user:bob"); !fault.Is(err, fault.Connection) ||
		!strings.Contains(fmt.Sprint(fault.From(err).Advice), "sandlot replicas remove unknown") {
		t.Errorf("what nobody has: %v", err)
	}
}

// TestFirst: the first server, with the state folder of a server without replicas, claims what has no folder, too.
func TestFirst(t *testing.T) {
	database := storetest.Database(t)
	alone, err := store.OpenServer(t.Context(), database, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []snapshot.Record{ofSnapshot("user:ann", "workspace of a"), ofSnapshot("user:bob", "gone")} {
		if err := alone.PutSnapshot(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	alone.Close()
	a := join(t, database, "a")
	a.find(t, "user:ann")
	a.find(t, "user:bob")
}

// TestRemove: what a server has is given up when it does not live, and other servers act for its principals then.
func TestRemove(t *testing.T) {
	database := storetest.Database(t)
	config, _, _ := store.PostgresConfig(database)
	remove := func(address string, dry bool) (Removed, error) { return Remove(t.Context(), config, address, dry) }
	if _, err := remove("a:7443", false); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("before there is any server: %v", err)
	}
	a, b := join(t, database, "a"), join(t, database, "b")
	a.find(t, "user:ann")
	b.find(t, "user:bob")
	if err := a.db.PutSession(t.Context(), session.Record{ID: "1", Owner: "user:ann/guest", Workspace: "w1"}); err != nil {
		t.Fatal(err)
	}
	if err := a.db.PutSnapshot(t.Context(), ofSnapshot("user:ann", "w2")); err != nil {
		t.Fatal(err)
	}
	if err := b.db.PutSession(t.Context(), session.Record{ID: "2", Owner: "user:bob", Workspace: "w3"}); err != nil {
		t.Fatal(err)
	}
	if _, err := remove("a:7443", false); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("a server that lives: %v", err)
	}
	a.crash()
	if _, err := b.Find(t.Context(), "user:ann"); !fault.Is(err, fault.Connection) ||
		!strings.Contains(fmt.Sprint(fault.From(err).Advice), "sandlot replicas remove a:7443") {
		t.Errorf("while it is away: %v", err)
	}
	for _, dry := range []bool{true, false} {
		if r, err := remove("a:7443", dry); err != nil || r != (Removed{1, 1}) {
			t.Errorf("%+v %v", r, err)
		}
	}
	if p := b.find(t, "user:ann"); p.Here == nil {
		t.Error("nobody acts for its principal")
	}
	if workspaces, _, err := b.db.Files(t.Context()); err != nil || fmt.Sprint(workspaces) != "[w3]" {
		t.Errorf("left: %q %v", workspaces, err)
	}
	if err := b.db.RemoveSession(t.Context(), "2"); err != nil {
		t.Error(err)
	}
	if r, err := remove(Unknown, false); err != nil || r != (Removed{}) {
		t.Errorf("nothing is unknown: %+v %v", r, err)
	}
}

// TestLostAlone: a server without replicas that has lost its lock does not go on when servers with replicas have used the
// database meanwhile.
func TestLostAlone(t *testing.T) {
	database := storetest.Database(t)
	p := newProxy(t, database)
	alone, err := store.OpenServer(t.Context(), p.url(database), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	p.refuse(true)
	p.cut()
	a := join(t, database, "a")
	if err := a.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	a.db.Close()
	p.refuse(false)
	if err := <-alone.Lost(); !fault.Is(err, fault.Configuration) {
		t.Error(err)
	}
}

// TestRowRemoved: a row that is removed before its server has taken it is made anew.
func TestRowRemoved(t *testing.T) {
	database := storetest.Database(t)
	config, _, _ := store.PostgresConfig(database)
	times := 0
	a := join(t, database, "a", func(c *Config) {
		c.rowMade = func() {
			if times++; times > 1 {
				return
			}
			db, err := pgx.ConnectConfig(t.Context(), config)
			if err == nil {
				_, err = db.Exec(t.Context(), `DELETE FROM sandlot_replicas`)
				err = errors.Join(err, db.Close(t.Context()))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	if a.find(t, "user:ann"); times != 2 {
		t.Errorf("made %d times", times)
	}
}

// TestVersions: servers of two versions do not share a database, and one that is away is no obstacle.
func TestVersions(t *testing.T) {
	database := storetest.Database(t)
	a := join(t, database, "a")
	later := func(c *Config) { c.Version = "2" }
	if _, err := open(t.Context(), database, "b", later); !fault.Is(err, fault.Configuration) ||
		!strings.Contains(err.Error(), "a:7443") {
		t.Errorf("beside a server of another version: %v", err)
	}
	if err := a.db.PutSession(t.Context(), session.Record{ID: "1", Owner: a.find(t, "user:ann").Unit}); err != nil {
		t.Error(err)
	}
	a.crash()
	join(t, database, "b", later)
}

// TestLeave: a server that stops gives up what others can take, and is listed as long as it has the rest.
func TestLeave(t *testing.T) {
	database := storetest.Database(t)
	config, _, _ := store.PostgresConfig(database)
	if all, err := List(t.Context(), config); err != nil || len(all) != 0 {
		t.Errorf("before: %v %v", all, err)
	}
	a, b := join(t, database, "a"), join(t, database, "b")
	a.find(t, "user:ann")
	a.find(t, "user:bob")
	if err := a.db.PutSession(t.Context(), session.Record{ID: "1", Owner: "user:bob"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := b.find(t, "user:ann"); p.Here == nil {
		t.Error("not given up")
	}
	all, err := List(t.Context(), config)
	if err != nil || len(all) != 2 || all[0].ID != "a" || all[0].Alive || all[0].Principals != 1 || !all[1].Alive ||
		all[1].Principals != 1 {
		t.Errorf("%+v %v", all, err)
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := List(t.Context(), config); err != nil || len(all) != 1 {
		t.Errorf("the last one: %+v %v", all, err)
	}
}

// TestKnown: a server is known by its certificate as soon as it has joined, and no longer when it has left.
func TestKnown(t *testing.T) {
	database := storetest.Database(t)
	a, b := join(t, database, "a"), join(t, database, "b")
	until(t, "b is known", func() bool { p, ok := a.Known(t.Context(), "fb"); return ok && p.Address == "b:7443" })
	for range 20 { // servers come and go
		a.changed("")
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if _, ok := a.Known(t.Context(), "fb"); !ok {
					t.Error("a server that is there is not known for a moment")
				}
			})
		}
		all.Wait()
	}
	if _, ok := a.Known(t.Context(), "fc"); ok {
		t.Error("who has not joined is known")
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "b is not known any longer", func() bool { _, ok := a.Known(t.Context(), "fb"); return !ok })
}

// TestSecondProcess: a second process with the same state folder does not start, and a later one takes over.
func TestSecondProcess(t *testing.T) {
	database := storetest.Database(t)
	a := join(t, database, "a")
	first := a.find(t, "user:ann")
	if _, err := open(t.Context(), database, "a"); !fault.Is(err, fault.Configuration) {
		t.Fatalf("a second process: %v", err)
	}
	a.proxy.refuse(true)
	a.proxy.cutFirst()
	later := join(t, database, "a")
	if p := later.find(t, "user:ann"); p.Here == nil || p.Epoch <= first.Epoch {
		t.Errorf("%+v after %+v", p, first)
	}
	a.proxy.refuse(false)
	if err := <-a.Lost(); !errors.Is(err, errTaken) {
		t.Error(err)
	}
}

// TestAtOnce: however many servers and callers want a unit at the same moment, one server gets it, and all learn which.
func TestAtOnce(t *testing.T) {
	database := storetest.Database(t)
	nodes := []*node{join(t, database, "a"), join(t, database, "b"), join(t, database, "c")}
	for round := range 20 {
		unit := fmt.Sprintf("user:u%d", round)
		var mu sync.Mutex
		owners := map[int64]bool{}
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				n := nodes[i%3]
				p, err := n.Find(t.Context(), unit)
				if err != nil {
					t.Error(err)
					return
				}
				number := p.Peer.Number
				if p.Here != nil {
					number = n.number
				}
				mu.Lock()
				defer mu.Unlock()
				owners[number] = true
			})
		}
		all.Wait()
		if len(owners) != 1 {
			t.Errorf("%s has the owners %v", unit, owners)
		}
	}
}

// TestClaimedFails: a unit whose stored state cannot be loaded is not served, and is loaded at the next call.
func TestClaimedFails(t *testing.T) {
	database := storetest.Database(t)
	calls := 0
	a := join(t, database, "a", func(c *Config) {
		c.Claimed = func(context.Context, string) error {
			if calls++; calls == 1 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
	})
	if _, err := a.Find(t.Context(), "user:ann"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	a.find(t, "user:ann")
	a.find(t, "user:ann")
	if calls != 2 {
		t.Errorf("loaded %d times", calls)
	}
}

// proxy passes connections on to PostgreSQL's socket, until a test cuts them.
type proxy struct {
	dir      string
	listener net.Listener

	mu      sync.Mutex
	refused bool
	frozen  chan struct{} // not nil: nothing is passed on until it is closed
	pairs   [][2]net.Conn
}

func newProxy(t testing.TB, database string) *proxy {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432")
	dir, err := os.MkdirTemp("", "sandlot-proxy-")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{dir: dir}
	if p.listener, err = net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432")); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			p.mu.Lock()
			if err != nil || p.refused {
				c.Close()
				if err == nil {
					server.Close()
				}
				p.mu.Unlock()
				continue
			}
			p.pairs = append(p.pairs, [2]net.Conn{c, server})
			p.mu.Unlock()
			running.Go(func() { p.pass(server, c) })
			running.Go(func() { p.pass(c, server) })
		}
	})
	t.Cleanup(func() {
		p.listener.Close()
		p.freeze(false)
		p.cut()
		running.Wait()
		os.RemoveAll(dir)
	})
	return p
}

func (p *proxy) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// url is the URL of the database through the proxy.
func (p *proxy) url(database string) string {
	u, _ := url.Parse(database)
	u.RawQuery = url.Values{"host": {p.dir}}.Encode()
	return u.String()
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.pairs {
		c[0].Close()
		c[1].Close()
	}
	p.pairs = nil
}

// cutFirst closes the first connection, which is the one with the lock until something was cut.
func (p *proxy) cutFirst() { p.cutOne(0) }

func (p *proxy) cutOne(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pairs) == 0 {
		return
	}
	i %= len(p.pairs)
	p.pairs[i][0].Close()
	p.pairs[i][1].Close()
	p.pairs = append(p.pairs[:i], p.pairs[i+1:]...)
}

// refuse makes new connections fail.
func (p *proxy) refuse(all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = all
}

// freeze stops all bytes.
func (p *proxy) freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
	if on {
		p.frozen = make(chan struct{})
	}
}
