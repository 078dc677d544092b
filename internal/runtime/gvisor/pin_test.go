package gvisor

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCores(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,4,6-7": {0, 1, 4, 6, 7}, "": nil,
		"x": nil} {
		if got := cores(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestKeep lets a sandbox compute: it is kept to its one core while it does,
// and let go after that.
func TestKeep(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cgroups need root")
	}
	s := subject(t, false)
	r := s.Open(t).(*Runtime)
	defer r.Close()
	k := newKeeper(r.cgroups)
	if !r.cgroups.usable() || len(k.cores) < 2 {
		t.Skip("one core cannot be shared out")
	}
	spec := s.Spec()
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(t.Context())
	file := k.cgroups.file(spec.ID, "cpuset", "cpuset.cpus")
	if _, err := os.Stat(file); err != nil {
		t.Skip("the cpuset controller is off")
	}
	has := func() []int {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return cores(strings.TrimSpace(string(text)))
	}
	now, used := time.Now(), time.Duration(0)
	p, other := &pulse{}, &pulse{}
	beat := func(p *pulse, share float64) {
		now = now.Add(time.Second)
		used += time.Duration(share * float64(time.Second))
		k.look(spec.ID, 1, used, now, p)
	}
	beat(p, 0)
	beat(p, 1.4)
	if p.kept != nil {
		t.Error("it was kept after one look")
	}
	beat(p, 1.4)
	if got := has(); len(got) != 1 || !slices.Equal(got, p.kept) {
		t.Errorf("it has the cores %v, and should have %v", got, p.kept)
	}
	// The next one goes elsewhere, as long as a core is free for others.
	beat(other, 0)
	beat(other, 1.4)
	beat(other, 1.4)
	beat(p, 1.4)
	if roomy := len(k.cores) > 2; (p.kept != nil) != roomy || (other.kept != nil) != roomy ||
		roomy && slices.Equal(other.kept, p.kept) {
		t.Errorf("of %v they are kept to %v and %v", k.cores, p.kept, other.kept)
	}
	for range hottest {
		beat(p, 0.1)
		beat(other, 0.1)
	}
	if got := has(); !slices.Equal(got, k.cores) || p.kept != nil || k.load[k.cores[0]] != 0 || k.wanted != 0 {
		t.Errorf("after that it has %v, load %v", got, k.load)
	}
}
