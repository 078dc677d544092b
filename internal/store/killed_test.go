package store

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/port"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/store/storetest"
	"sandlot/internal/vault"
)

// absent is the value of what is not stored.
const absent = "-"

// TestKilledChild is the process that TestKilled ends: it stores and removes things of all kinds, and says before each
// change what it begins, and after it what is done.
func TestKilledChild(t *testing.T) {
	place, first, _ := strings.Cut(os.Getenv("KILLED_CHILD"), " ")
	if place == "" {
		return // it is a part of the other test
	}
	db, err := OpenServer(t.Context(), place, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	begin, _ := strconv.Atoi(first)
	var work sync.WaitGroup
	for worker := range 4 {
		work.Go(func() {
			owner := fmt.Sprintf("user:u%d", worker)
			for n := begin; ; n++ {
				for _, c := range changes(db, owner, n) {
					fmt.Printf("begin %s %s\n", c.key, c.value)
					if err := c.do(t.Context()); err != nil {
						t.Errorf("%s: %v", c.key, err)
						return
					}
					fmt.Printf("done %s %s\n", c.key, c.value)
				}
			}
		})
	}
	work.Wait()
}

// change is one change of the database.
type change struct {
	key, value string
	do         func(context.Context) error
}

// changes returns the changes of one round of an owner, whose number is in all that they store.
func changes(db *DB, owner string, n int) []change {
	value, second := strconv.Itoa(n), at.Truncate(time.Second)
	session := sessionOf(fmt.Sprintf("%s-%d", owner, n%3))
	session.Owner, session.Lost = owner, value
	key := func(kind, id string) string { return kind + "/" + owner + "/" + id }
	token := "t" + value
	all := []change{
		{key("token", token), token, func(ctx context.Context) error {
			return db.AddToken(ctx, auth.Token{ID: owner + token, Hash: owner + token, Owner: owner, User: token,
				Created: second})
		}},
		{key("session", session.ID), value, func(ctx context.Context) error { return db.PutSession(ctx, session) }},
		{key("port", session.ID), value, func(ctx context.Context) error {
			return db.PutPort(ctx, port.Record{Session: session.ID, Port: 80, Owner: owner, Hash: value,
				Created: second,
				Expires: second})
		}},
		{key("secret", "S"), value, func(ctx context.Context) error {
			return db.PutSecret(ctx, vault.Record{Owner: owner, Name: "S", Sealed: []byte(value), Created: at,
				Changed: at})
		}},
		{key("login", "c"), value, func(ctx context.Context) error {
			return db.PutLogin(ctx, owner, "c", []byte(value))
		}},
		{key("connection", "aaaaaa"), value, func(ctx context.Context) error {
			return db.PutConnection(ctx, servers.Record{Owner: owner, ID: "aaaaaa", Spec: spec.Spec{Name: value}})
		}},
	}
	if n%4 > 0 {
		all = append(all, change{key("token", token), absent, func(ctx context.Context) error {
			return db.RemoveToken(ctx, owner+token)
		}})
	}
	if n%5 == 0 {
		all = append(all, change{key("login", "c"), absent, func(ctx context.Context) error {
			return db.RemoveLogin(ctx, owner, "c")
		}}, change{key("secret", "S"), absent, func(ctx context.Context) error {
			return db.RemoveSecret(ctx, owner, "S")
		}})
	}
	return all
}

// stored returns the values that are stored, by the keys of changes.
func stored(t *testing.T, db *DB) map[string]string {
	t.Helper()
	all := map[string]string{}
	tokens, err := db.Tokens(t.Context())
	for _, k := range tokens {
		all["token/"+k.Owner+"/"+k.User] = k.User
	}
	for _, r := range sessions(t, db) {
		all["session/"+r.Owner+"/"+r.ID] = r.Lost
	}
	ports, portErr := db.Ports(t.Context())
	for _, r := range ports {
		all["port/"+r.Owner+"/"+r.Session] = r.Hash
	}
	if err != nil || portErr != nil {
		t.Fatal(err, portErr)
	}
	for worker := range 4 {
		owner := fmt.Sprintf("user:u%d", worker)
		secrets, err := db.Secrets(t.Context(), owner)
		for _, r := range secrets {
			all["secret/"+owner+"/"+r.Name] = string(r.Sealed)
		}
		connections, connectionErr := db.Connections(t.Context(), owner)
		for _, r := range connections {
			all["connection/"+owner+"/"+r.ID] = r.Name
		}
		if sealed, err := db.Login(t.Context(), owner, "c"); err == nil {
			all["login/"+owner+"/c"] = string(sealed)
		}
		if err != nil || connectionErr != nil {
			t.Fatal(err, connectionErr)
		}
	}
	return all
}

// kills is how many times TestKilled kills the child. The variable SANDLOT_TEST_KILLS may name another number.
func kills(t *testing.T) int {
	if v := os.Getenv("SANDLOT_TEST_KILLS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 40
}

// Every change that was done is there after a kill at any moment, and no other value than one that was begun.
func TestKilled(t *testing.T) { storetest.Each(t, testKilled) }

func testKilled(t *testing.T, place string) {
	possible, done := map[string][]string{}, 0 // the values that may be stored, by key
	for round := range kills(t) {
		c := exec.Command(os.Args[0], "-test.run=^TestKilledChild$")
		c.Env = append(os.Environ(), fmt.Sprintf("KILLED_CHILD=%s %d", place, (round+1)*1_000_000))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var killed sync.WaitGroup
		first := true
		for lines := bufio.NewScanner(out); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) != 3 || words[0] != "begin" && words[0] != "done" {
				t.Errorf("the child says %q", lines.Text())
				continue
			}
			key, value := words[1], words[2]
			if words[0] == "begin" {
				if possible[key] == nil {
					possible[key] = []string{absent}
				}
				possible[key] = append(possible[key], value)
				continue
			}
			possible[key] = []string{value}
			done++
			if first {
				first = false
				killed.Go(func() {
					time.Sleep(rand.N(60 * time.Millisecond))
					c.Process.Kill()
				})
			}
		}
		killed.Wait()
		c.Wait()
		if first {
			t.Fatal("the child has done nothing")
		}
		checkStored(t, place, round, possible)
	}
	t.Logf("%d changes were done, %d things are stored or were", done, len(possible))
}

// checkStored compares what is stored with what may be, which is then known.
func checkStored(t *testing.T, place string, round int, possible map[string][]string) {
	t.Helper()
	// As the next server, which waits for what PostgreSQL still does for the connections of the killed one.
	db, err := OpenServer(t.Context(), place, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all := stored(t, db)
	for key := range all {
		if possible[key] == nil {
			t.Errorf("round %d: nobody has stored %s", round, key)
		}
	}
	for key, values := range possible {
		is, ok := all[key]
		if !ok {
			is = absent
		}
		if !slices.Contains(values, is) {
			t.Errorf("round %d: %s is %s, want one of %v", round, key, is, values)
		}
		possible[key] = []string{is}
	}
}
