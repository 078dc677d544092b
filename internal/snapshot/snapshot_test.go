package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session"
)

// stored is a store in memory.
type stored map[string]Record

func (s stored) PutSnapshot(_ context.Context, r Record) error { s[r.ID] = r; return nil }

func (s stored) Snapshots(context.Context) (all []Record, err error) {
	for _, r := range s {
		all = append(all, r)
	}
	return all, nil
}

func (s stored) RemoveSnapshot(_ context.Context, id string) error { delete(s, id); return nil }

var ann, bob, eve = auth.User("ann", false), auth.User("bob", false), auth.User("eve", false)

// TestTooOld: of the snapshots before calls, five of each session are kept, and 20 of all.
func TestTooOld(t *testing.T) {
	all := []Record{{ID: "named", Name: "named", Session: "a"}}
	for n := range Max + 2 {
		id := string(rune('a' + n/4))
		all = append(all, Record{ID: fmt.Sprint(id, n), Name: beforePrefix + id, Session: id})
	}
	for n := range maxBefore {
		all = append(all, Record{ID: fmt.Sprint("f", n+Max+2), Name: beforePrefix + "f", Session: "f"})
	}
	got := ""
	for _, r := range tooOld(all, "f") {
		got += r.ID + " "
	}
	if want := "f20 f21 a0 a1 a2 a3 b4 "; got != want {
		t.Errorf("%q are too old, want %q", got, want)
	}
}

// TestAdmit: who may make a snapshot, and of which name.
func TestAdmit(t *testing.T) {
	s := New(Config{Store: stored{"a": {ID: "a", Owner: ann.ID, Name: "first", Bytes: 5, Content: session.Content{
		Image: "image", Workspace: "workspace"}}}, DiskBytes: 100, Log: slog.New(slog.DiscardHandler)})
	if err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	admit := func(p auth.Principal, id, name string, bytes int64) error {
		return s.admit(&Record{ID: id, Owner: p.ID, Name: name, Bytes: bytes})
	}
	if err := admit(ann, "b", "first", 0); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("a second snapshot of a name: %v", err)
	}
	if err := admit(bob, "c", "first", 0); err != nil {
		t.Errorf("another user's snapshot of that name: %v", err)
	}
	if err := admit(bob, "d", "first", 0); err == nil {
		t.Error("a second one, while the first is being made")
	}
	if list := s.List(bob); len(list) != 0 {
		t.Errorf("one that is being made is in the list: %+v", list)
	}
	for n := range Max - 1 {
		if err := admit(ann, string(rune('A'+n)), string(rune('A'+n)), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := admit(ann, "e", "more", 1); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("one more than %d: %v", Max, err)
	}
	if err := admit(ann, "i", beforePrefix+"x", 1); err != nil {
		t.Errorf("before a call, when there are %d: %v", Max, err)
	}
	if err := admit(bob, "f", "large", 37); err != nil {
		t.Fatal(err)
	}
	if err := admit(bob, "g", "more", 1); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("bob has more than stays free: %v", err)
	}
	if err := admit(eve, "h", "first", 19); err != nil {
		t.Errorf("another user finds no room: %v", err)
	}
	if err := s.grow(s.all["h"], 20); !fault.Is(err, fault.ResourceLimit) || s.all["h"].Bytes != 19 {
		t.Errorf("one that grows while it is made: %v", err)
	}
	if bytes := s.Bytes(ann.ID); bytes != 5+Max-1+1 {
		t.Errorf("ann has %d bytes", bytes)
	}
	if workspaces, images, err := s.Kept(t.Context()); len(workspaces) != 1 || len(images) != 1 || err != nil {
		t.Errorf("%q and %q are kept: %v", workspaces, images, err)
	}
}

// TestNames: a snapshot is its owner's alone, and names that are none are refused.
func TestNames(t *testing.T) {
	s := New(Config{Store: stored{"a": {ID: "a", Owner: ann.ID, Name: "first", Session: "s", Content: session.Content{
		Image: "image"}}}, DiskBytes: 100, Sessions: &session.Sessions{Config: session.Config{Rules: session.Rules{
		Hibernation: session.Hibernation{Enabled: true}}}}})
	if err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.SessionOf(ann, "first") != "s" || s.SessionOf(bob, "first") != "" || len(s.List(bob)) != 0 {
		t.Error("bob sees ann's snapshot")
	}
	for _, err := range []error{s.Remove(t.Context(), bob, "first"), s.Remove(t.Context(), ann, "second")} {
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("removing what one does not have: %v", err)
		}
	}
	if _, err := s.Restore(t.Context(), bob, "first", "new"); !fault.Is(err, fault.NotFound) {
		t.Errorf("restoring another user's snapshot: %v", err)
	}
	for _, name := range []string{"..", "-a", "a/b", "a b", "\n", "before-mine"} {
		if _, err := s.Create(t.Context(), ann, "home", name); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, n := range []int{-1, 0, MaxCopies + 1} {
		if _, _, err := s.Fork(t.Context(), ann, "home", n); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("%d copies: %v", n, err)
		}
	}
	_, done, err := s.use(ann, "first") // as a restore does
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), ann, "first"); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("removing what is being restored: %v", errors.Join(err))
	}
	done()
	if len(s.used) != 0 || len(s.List(ann)) != 1 {
		t.Errorf("%v is in use", s.used)
	}
}
