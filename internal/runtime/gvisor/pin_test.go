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
		if got := parseCPUList(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestPin lets a sandbox compute: it is pinned to its one core while it does, and
// released after that.
func TestPin(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("cgroups need root")
	}
	s := subject(t, false)
	r := s.Open(t).(*Runtime)
	defer r.Close()
	pins := newPinner(r.cgroups)
	if !r.cgroups.usable() || len(pins.cores) < 2 {
		t.Skip("one core cannot be shared out")
	}
	spec := s.Spec()
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(t.Context())
	file := pins.cgroups.filePath(spec.ID, "cpuset", "cpuset.cpus")
	if _, err := os.Stat(file); err != nil {
		t.Skip("the cpuset controller is off")
	}
	has := func() []int {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return parseCPUList(strings.TrimSpace(string(text)))
	}
	now, used := time.Now(), time.Duration(0)
	p, other := &cpuUse{}, &cpuUse{}
	look := func(p *cpuUse, share float64) {
		now = now.Add(time.Second)
		used += time.Duration(share * float64(time.Second))
		pins.update(spec.ID, 1, used, now, p)
	}
	look(p, 0)
	look(p, 1.4)
	if p.pinnedCores != nil {
		t.Error("it was pinned after one look")
	}
	look(p, 1.4)
	if got := has(); len(got) != 1 || !slices.Equal(got, p.pinnedCores) {
		t.Errorf("it has the cores %v, and should have %v", got, p.pinnedCores)
	}
	// The next one goes elsewhere, as long as a core is free for others.
	look(other, 0)
	look(other, 1.4)
	look(other, 1.4)
	look(p, 1.4)
	if roomy := len(pins.cores) > 2; (p.pinnedCores != nil) != roomy || (other.pinnedCores != nil) != roomy ||
		roomy && slices.Equal(other.pinnedCores, p.pinnedCores) {
		t.Errorf("of %v they are pinned to %v and %v", pins.cores, p.pinnedCores, other.pinnedCores)
	}
	for range maxBusyScore {
		look(p, 0.1)
		look(other, 0.1)
	}
	if got := has(); !slices.Equal(got, pins.cores) || p.pinnedCores != nil || pins.pinsPerCore[pins.cores[0]] != 0 ||
		pins.wantedCores != 0 {
		t.Errorf("after that it has %v, load %v", got, pins.pinsPerCore)
	}
}
