package cgroup

import (
	"os"
	"path/filepath"
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

// group makes the group of a sandbox, as runsc does, with all cores. It returns the file with its cores.
func group(t *testing.T, c Groups, id string) string {
	t.Helper()
	if os.Getuid() != 0 || !c.Usable() {
		t.Skip("cgroups need root")
	}
	dir, files := filepath.Join(Root, "cpuset"), []string{"cpuset.cpus", "cpuset.mems"}
	if c.version == 2 {
		dir, files = Root, nil
	}
	for _, name := range []string{c.name, id} {
		parent := dir
		dir = filepath.Join(dir, name)
		if c.version == 2 { // fails where the controller is off, or is on already
			os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpuset"), 0)
		}
		err := os.Mkdir(dir, 0o755)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			t.Skipf("no group can be made: %v", err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(parent, f))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, f), text, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return c.filePath(id, "cpuset", "cpuset.cpus")
}

// TestPin: a sandbox that computes is pinned to its one core while it does and others work, and
// released after that.
func TestPin(t *testing.T) {
	c := Find(t.TempDir())
	file := group(t, c, "busy")
	group(t, c, "other")
	pins := NewPinner(c)
	if len(pins.cores) < 2 {
		t.Skip("one core cannot be shared out")
	}
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
	now, used := time.Now(), map[*CPUUse]time.Duration{}
	p, other, guest := &CPUUse{}, &CPUUse{}, &CPUUse{}
	look := func(p *CPUUse, share float64) {
		now = now.Add(time.Second)
		used[p] += time.Duration(share * float64(time.Second))
		pins.Update(map[*CPUUse]string{p: "busy", other: "other", guest: "guest"}[p], 1, used[p], now, p)
	}
	// Beside it nobody works: it has all cores.
	look(guest, 0)
	for range 12 {
		look(guest, 0)
		look(p, 1.4)
	}
	if p.pinnedCores != nil {
		t.Error("it was pinned, and no other one works")
	}
	pins.Remove("busy", p)
	*p = CPUUse{}
	look(guest, 0)
	look(guest, 0.05)
	look(guest, 0.05)
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
