package store

import (
	"fmt"
	"testing"
	"time"

	"sandlot/internal/session/usage"
	"sandlot/internal/store/storetest"
)

func TestUsage(t *testing.T) { storetest.Each(t, testUsage) }

// testUsage: what is added is summed up by days, is bounded in sessions and days, and is there after a restart.
func testUsage(t *testing.T, dir string) {
	db := open(t, dir)
	add := func(k usage.Key, u usage.Used) {
		t.Helper()
		if err := db.AddUsage(t.Context(), map[usage.Key]usage.Used{k: u}, nil); err != nil {
			t.Fatal(err)
		}
	}
	read := func(owner string, since int64) map[usage.Key]usage.Used {
		t.Helper()
		all, err := db.Usage(t.Context(), owner, since)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	one := usage.Used{CPU: 1500 * time.Millisecond, Memory: 5 << 30, Disk: 1, Sent: 2, Received: 3 << 40, Calls: 4}
	add(usage.Key{Day: 100, Owner: "user:ann", Session: "a"}, one)
	add(usage.Key{Day: 100, Owner: "user:ann", Session: "a"}, usage.Used{CPU: time.Second, Memory: 1, Disk: 9})
	add(usage.Key{Day: 100, Owner: "user:ann", Session: ""}, usage.Used{Calls: 1})
	add(usage.Key{Day: 101, Owner: "user:ann", Session: "a"}, one)
	add(usage.Key{Day: 101, Owner: "user:bob", Session: "b"}, one)
	db.Close()
	db = open(t, dir)
	want := usage.Used{CPU: 2500 * time.Millisecond, Memory: 5 << 30, Disk: 9, Sent: 2, Received: 3 << 40, Calls: 4}
	got := read("user:ann", 100)
	if len(got) != 3 || got[usage.Key{Day: 100, Owner: "user:ann", Session: "a"}] != want {
		t.Errorf("ann has %+v", got)
	}
	if got := read("user:ann", 101); len(got) != 1 {
		t.Errorf("since the second day: %+v", got)
	}
	want.Calls++
	if got := read("", 100); len(got) != 3 || got[usage.Key{Day: 100, Owner: "user:ann"}] != want {
		t.Errorf("all have %+v", got)
	}
	for i := range usage.MaxSessions + 20 {
		add(usage.Key{Day: 102, Owner: "user:bob", Session: fmt.Sprint("s", i)}, usage.Used{Calls: 1})
	}
	got = read("user:bob", 102)
	var calls int64
	for _, u := range got {
		calls += u.Calls
	}
	if len(got) > usage.MaxSessions+1 || calls != usage.MaxSessions+20 {
		t.Errorf("bob has %d rows with %d calls", len(got), calls)
	}
	flood := map[usage.Key]usage.Used{}
	for i := range 3 * usage.MaxOfService {
		flood[usage.Key{Day: 99, Owner: fmt.Sprint("user:svc/", i), Session: "s"}] = usage.Used{Calls: 1}
	}
	if err := db.AddUsage(t.Context(), flood, nil); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := db.db.QueryRow(`SELECT COUNT(*) FROM usage_days WHERE day = 99`).Scan(&rows); err != nil ||
		rows > 2*usage.MaxOfService+1 {
		t.Errorf("the users of a service have %d rows, %v", rows, err)
	}
	service := usage.Key{Day: 99, Owner: "user:svc"}
	if got := read("", 99); got[service].Calls != 3*usage.MaxOfService {
		t.Errorf("the service has %+v in all", got[service])
	}
	if err := db.RemoveUsage(t.Context(), 101); err != nil {
		t.Fatal(err)
	}
	if got := read("", 0); len(got) != 3 {
		t.Errorf("after the removal of old days: %+v", got)
	}
	r := sessionOf("s1")
	put(t, db, r)
	if err := db.AddUsage(t.Context(), nil, map[string]time.Duration{"s1": 7 * time.Second, "gone": 1}); err != nil {
		t.Fatal(err)
	}
	put(t, db, r)
	if seen, err := db.CountedCPU(t.Context()); err != nil || len(seen) != 1 || seen["s1"] != 7*time.Second {
		t.Errorf("counted: %v, %v", seen, err)
	}
}
