package replica

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/store"
	"sandlot/internal/store/storetest"
)

// childVariable makes the test's program a server: the URL of the database.
const childVariable = "SANDLOT_REPLICA_DATABASE"

// order is what a child is asked to do: to find a unit and to write for it, or to write for it as the owner with an epoch.
type order struct {
	ID    int64
	Unit  string
	Epoch int64 // 0: find the unit
}

// outcome is a child's answer: it has written with an epoch, or another one is the owner.
type outcome struct {
	ID     int64
	Epoch  int64  // of the owner
	Number int64  // of the owner's process; 0: this one has written
	Fault  string // nothing was written, or it is not known
}

// child serves orders on its standard input until that ends.
func child() {
	ctx := context.Background()
	n, err := open(ctx, os.Getenv(childVariable), os.Getenv(childVariable+"_ID"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		<-n.Lost()
		os.Exit(3)
	}()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	out.Encode(outcome{Number: n.number})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var o order
		if json.Unmarshal(in.Bytes(), &o) != nil {
			os.Exit(4)
		}
		go func() {
			result := n.obey(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			out.Encode(result)
		}()
	}
	os.Exit(0)
}

func (n *node) obey(ctx context.Context, o order) outcome {
	p, err := Place{}, error(nil)
	if o.Epoch == 0 {
		p, err = n.Find(ctx, o.Unit)
	} else if owned, ok := n.Owned(o.Unit, o.Epoch); ok {
		p = owned
	} else {
		return outcome{ID: o.ID, Fault: "misdirected"}
	}
	switch {
	case err != nil:
		return outcome{ID: o.ID, Fault: err.Error()}
	case p.Here == nil:
		return outcome{ID: o.ID, Epoch: p.Epoch, Number: p.Peer.Number}
	}
	if err := n.write(p.Here, o.Unit, "E"+strconv.FormatInt(p.Epoch, 10)); err != nil {
		return outcome{ID: o.ID, Fault: err.Error()}
	}
	return outcome{ID: o.ID, Epoch: p.Epoch}
}

// process is a child as the test sees it.
type process struct {
	id     string
	proxy  *proxy
	url    string
	cmd    *exec.Cmd
	in     io.WriteCloser
	number int64

	mu      sync.Mutex
	dead    bool
	waiting map[int64]chan outcome
}

func (c *cluster) launch(i int) *process {
	old := c.processes[i]
	p := &process{id: old.id, proxy: old.proxy, url: old.url, waiting: map[int64]chan outcome{}}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childVariable+"="+p.url, childVariable+"_ID="+p.id)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	started := make(chan int64, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var o outcome
			if json.Unmarshal(lines.Bytes(), &o) != nil {
				continue
			}
			if o.ID == 0 {
				started <- o.Number
				continue
			}
			p.mu.Lock()
			if answer := p.waiting[o.ID]; answer != nil {
				answer <- o
			}
			p.mu.Unlock()
		}
		p.cmd.Wait()
		p.mu.Lock()
		p.dead = true
		p.mu.Unlock()
		close(started)
	}()
	p.number = <-started
	return p
}

func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// ask sends an order, and waits for the outcome for a while.
func (p *process) ask(o order) (outcome, bool) {
	answer := make(chan outcome, 1)
	p.mu.Lock()
	p.waiting[o.ID] = answer
	p.mu.Unlock()
	defer func() { p.mu.Lock(); delete(p.waiting, o.ID); p.mu.Unlock() }()
	text, _ := json.Marshal(o)
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		return outcome{}, false
	}
	select {
	case r := <-answer:
		return r, true
	case <-time.After(2 * time.Second):
		return outcome{}, false
	}
}

type cluster struct {
	t  *testing.T
	mu sync.Mutex

	processes []*process
	ids       int64
	written   map[string]int64 // the greatest epoch that was acknowledged
}

func (c *cluster) process(i int) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[i]
}

// call asks a server to write for a unit, as a client does: the server sends it on to the owner.
func (c *cluster) call(i int, unit string) bool {
	c.mu.Lock()
	c.ids += 2
	id := c.ids
	before := c.written[unit]
	c.mu.Unlock()
	o, ok := c.process(i).ask(order{ID: id, Unit: unit})
	if ok && o.Fault == "" && o.Number != 0 {
		for j := range c.processes {
			if p := c.process(j); p.number == o.Number {
				o, ok = p.ask(order{ID: id + 1, Unit: unit, Epoch: o.Epoch})
				break
			}
		}
	}
	if !ok || o.Fault != "" || o.Number != 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Epoch < before { // a call that began after another one was acknowledged
		c.t.Errorf("%s was written with the epoch %d after %d", unit, o.Epoch, before)
	}
	c.written[unit] = max(c.written[unit], o.Epoch)
	return true
}

// journal makes PostgreSQL note each claim, and each change with the epoch of that moment.
const journal = `CREATE TABLE journal (n BIGSERIAL, kind TEXT, unit TEXT, number BIGINT, epoch BIGINT, said TEXT);
CREATE FUNCTION note_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO journal (kind, unit, number, epoch) VALUES ('claim', NEW.principal, NEW.number, NEW.epoch);
	RETURN NEW; END $$;
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO journal (kind, unit, number, epoch, said) SELECT 'write', principal, number, epoch, NEW.name
		FROM sandlot_owners WHERE principal = NEW.principal; RETURN NEW; END $$;
CREATE TRIGGER note_claim AFTER INSERT OR UPDATE ON sandlot_owners FOR EACH ROW EXECUTE FUNCTION note_claim();
CREATE TRIGGER note_write AFTER INSERT OR UPDATE ON secrets FOR EACH ROW EXECUTE FUNCTION note_write();`

// TestFaults: three servers write for many units while they are killed and stopped, and while their connections to
// PostgreSQL break, hang and are refused. No epoch has two owners, no change of an earlier owner is accepted, and at the
// end every unit is served by every server. SANDLOT_FAULTS is the number of faults.
func TestFaults(t *testing.T) {
	faults := 12
	if n, err := strconv.Atoi(os.Getenv("SANDLOT_FAULTS")); err == nil {
		faults = n
	}
	database := storetest.Database(t)
	c := &cluster{t: t, written: map[string]int64{}}
	for _, id := range []string{"a", "b", "c"} {
		p := newProxy(t, database)
		c.processes = append(c.processes, &process{id: id, proxy: p, url: p.url(database)})
	}
	for i := range c.processes {
		c.processes[i] = c.launch(i)
	}
	t.Cleanup(func() {
		for i := range c.processes {
			p := c.process(i)
			p.cmd.Process.Kill()
			until(t, "it has ended", p.ended)
		}
	})
	config, _, _ := store.PostgresConfig(database)
	db, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	if _, err := db.Exec(t.Context(), journal); err != nil {
		t.Fatal(err)
	}
	var units []string
	for i := range 12 {
		units = append(units, fmt.Sprintf("user:u%d", i))
	}
	for i, unit := range units { // each server has some of them before anything breaks
		until(t, unit+" is claimed", func() bool { return c.call(i%3, unit) })
	}
	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for k := range 6 {
		load.Go(func() {
			for i := k; loading.Err() == nil; i++ {
				if !c.call(rand.IntN(3), units[i%len(units)]) {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	seed := rand.Uint64()
	t.Logf("%d faults with the seed %d", faults, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for n := range faults {
		c.fault(random, n%6)
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		c.revive()
	}
	stop()
	load.Wait()
	for i := range c.processes {
		for _, unit := range units {
			until(t, unit+" is served by server "+c.process(i).id, func() bool { c.revive(); return c.call(i, unit) })
		}
	}
	c.check(db)
}

// fault breaks something of one server.
func (c *cluster) fault(random *rand.Rand, kind int) {
	i := random.IntN(3)
	p := c.process(i)
	pause := time.Duration(random.IntN(1500)) * time.Millisecond
	switch kind {
	case 0: // long enough for others to take over what it owns
		p.cmd.Process.Kill()
		time.Sleep(1500*time.Millisecond + pause)
	case 1:
		p.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(pause)
		p.cmd.Process.Signal(syscall.SIGCONT)
	case 2:
		p.proxy.cut()
	case 3:
		p.proxy.cutOne(random.IntN(9))
	case 4: // its connections are gone, and it does not know it: it stands still
		p.cmd.Process.Signal(syscall.SIGSTOP)
		p.proxy.cut()
		time.Sleep(pause)
		p.cmd.Process.Signal(syscall.SIGCONT)
	case 5:
		p.proxy.refuse(true)
		p.proxy.cutFirst() // of those that are left: others go on
		time.Sleep(pause)
		p.proxy.refuse(false)
	}
}

// revive starts servers again that have ended.
func (c *cluster) revive() {
	for i := range c.processes {
		if !c.process(i).ended() {
			continue
		}
		fresh := c.launch(i)
		c.mu.Lock()
		c.processes[i] = fresh
		c.mu.Unlock()
	}
}

// check reads the journal.
func (c *cluster) check(db *pgx.Conn) {
	rows, err := db.Query(context.Background(), `SELECT kind, unit, number, epoch, coalesce(said, '') FROM journal ORDER BY n`)
	if err != nil {
		c.t.Fatal(err)
	}
	var kind, unit, said string
	var number, epoch int64
	last := map[string][2]int64{}
	owners := map[string]int64{}
	claims, writes := 0, 0
	if _, err := pgx.ForEachRow(rows, []any{&kind, &unit, &number, &epoch, &said}, func() error {
		key := fmt.Sprintf("%s %d", unit, epoch)
		switch kind {
		case "claim":
			claims++
			if owner, twice := owners[key]; twice && owner != number {
				c.t.Errorf("%s has the owners %d and %d", key, owner, number)
			}
			if epoch <= last[unit][0] {
				c.t.Errorf("%s: the epoch %d after %d", unit, epoch, last[unit][0])
			}
			owners[key], last[unit] = number, [2]int64{epoch, number}
		case "write":
			writes++
			if said != fmt.Sprintf("E%d", epoch) {
				c.t.Errorf("%s was written by the owner of %s in the epoch %d", unit, said, epoch)
			}
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("%d claims, %d writes", claims, writes)
	if writes == 0 || claims <= 12 {
		c.t.Errorf("%d claims, %d writes: too few", claims, writes)
	}
}
