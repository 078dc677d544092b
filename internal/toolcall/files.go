package toolcall

import (
	"slices"
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/state"
	"sandlot/internal/servers/toolfiles"
)

// treeFile is a file of a tree, with what stands for its content.
type treeFile struct {
	agent.ToolFile
	sum file
}

// owned is what the sandboxes of one owner share.
type owned struct {
	boxes   map[*sandbox]bool // guarded by Calls.mu
	changes int               // of what its servers offer; guarded by Calls.mu
	budget  budget

	making chan struct{} // held while the tree is made; it guards what follows
	of     int           // the tree is that after so many changes
	tree   []treeFile    // nil: it has to be made
	maker  toolfiles.Maker
	known  map[string]known // what was offered when the tree was made, by the server's name
	count  int64            // of versions of servers
}

// known is what a server offered at some time.
type known struct {
	catalog.Offered
	version int64
}

const (
	// maxMaking bounds how many trees are made at once: one of 500 tools takes 40 ms of a processor.
	maxMaking = 2
	// maxTrees is of how many owners trees are kept, for their next sandbox or change: 2 MB for 500 tools.
	maxTrees = 32
)

// treeOf returns the files of an owner's tool tree. It is made once for all sandboxes of the owner.
func (cs *Calls) treeOf(o *owned, p auth.Principal) ([]treeFile, error) {
	if !cs.hold(o.making) {
		return nil, cs.ctx.Err()
	}
	defer func() { <-o.making }()
	cs.mu.Lock()
	changes := o.changes
	cs.mu.Unlock()
	if o.tree != nil && o.of == changes {
		return o.tree, nil
	}
	if !cs.hold(cs.making) {
		return nil, cs.ctx.Err()
	}
	defer func() { <-cs.making }()
	tree, err := cs.makeTree(o, p)
	if err != nil {
		return nil, err
	}
	o.of, o.tree = changes, tree
	if old := cs.keepTree(o); old != nil {
		cs.spawn(func() { // it may be made just now
			if !cs.hold(old.making) {
				return
			}
			defer func() { <-old.making }()
			cs.mu.Lock()
			again := slices.Contains(cs.kept, old)
			cs.mu.Unlock()
			if !again {
				old.tree, old.known, old.maker = nil, nil, toolfiles.Maker{}
			}
		})
	}
	return tree, nil
}

// hold waits for a slot, until Close.
func (cs *Calls) hold(slot chan struct{}) bool {
	select {
	case slot <- struct{}{}:
		return true
	case <-cs.ctx.Done():
		return false
	}
}

// keepTree notes that an owner's tree was used, and returns the owner whose tree is to be forgotten; nil: none.
func (cs *Calls) keepTree(o *owned) (old *owned) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.kept = slices.DeleteFunc(cs.kept, func(k *owned) bool { return k == o || len(k.boxes) == 0 })
	if cs.kept = append(cs.kept, o); len(cs.kept) > maxTrees {
		old = cs.kept[0]
		cs.kept = slices.Delete(cs.kept, 0, 1)
	}
	return old
}

// makeTree makes the tree of what an owner's servers offer now. The caller holds o.making.
func (cs *Calls) makeTree(o *owned, p auth.Principal) (files []treeFile, err error) {
	files = []treeFile{}
	if cs.tree != nil {
		all, err := cs.tree(p)
		for _, f := range all {
			files = append(files, treeFile{f, fileOf(f)})
		}
		return files, err
	}
	var all []toolfiles.Source
	now := map[string]known{}
	for _, s := range cs.Servers.Offered(p) {
		k, ok := o.known[s.Name]
		if !ok || !equalOffers(k.Offered, s) {
			o.count++
			k = known{s, o.count}
		}
		now[s.Name] = k
		all = append(all, toolfiles.Source{Name: s.Name, Tools: len(s.Tools), Version: k.version,
			Read: func() toolfiles.Server { return serverOf(s) }})
	}
	o.known = now
	for _, f := range o.maker.Tree(all) {
		made := agent.ToolFile{Path: f.Path, Data: f.Content, Link: f.Link}
		if f.Link != "" {
			files = append(files, treeFile{made, fileOf(made)})
		} else {
			files = append(files, treeFile{made, f.Sum})
		}
	}
	return files, nil
}

func equalOffers(a, b catalog.Offered) bool {
	return a.Name == b.Name && a.Instructions == b.Instructions && a.State == b.State &&
		slices.EqualFunc(a.Tools, b.Tools, func(a, b catalog.Definition) bool {
			return a.Exposed == b.Exposed && a.Remote == b.Remote && a.HeldBecause == b.HeldBecause &&
				string(a.Raw) == string(b.Raw)
		})
}

// serverOf returns a server as the tree has it. Of a tool that is held back it has the name alone: nobody has approved
// the rest.
func serverOf(s catalog.Offered) toolfiles.Server {
	made := toolfiles.Server{Name: s.Name, Instructions: s.Instructions,
		State: diagnosis.Lasting(s.Name, state.State(s.State), len(s.Tools) > 0),
		Off:   s.State == string(state.Disabled)}
	for _, d := range s.Tools {
		t := toolfiles.Tool{Name: d.Exposed, Remote: d.Remote, Held: d.HeldBecause}
		if d.HeldBecause == "" {
			text := d.Text()
			// Lists need that mark, since they are of all servers.
			t.Description = strings.TrimSpace(strings.TrimPrefix(text.Description, "[external:"+s.Name+"]"))
			t.Title, t.Input, t.Output = text.Title, text.InputSchema, text.OutputSchema
		}
		made.Tools = append(made.Tools, t)
	}
	return made
}
