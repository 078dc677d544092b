package inventory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/oci"
	"sandlot/internal/secret"
)

// PullState is how far a pull is.
type PullState string

const (
	PullRunning PullState = "running"
	PullDone    PullState = "done"
	PullFailed  PullState = "failed" // or somebody ended it
)

// Pull is the getting of an image from its registry.
type Pull struct {
	ID       string     `json:"pull_id"`
	Image    string     `json:"image" jsonschema:"Its name."`
	Platform string     `json:"platform,omitempty" jsonschema:"The one that was asked for; missing: the machine's."`
	State    PullState  `json:"state" jsonschema:"running, done or failed."`
	Done     int64      `json:"done_bytes" jsonschema:"How much of its layers is here."`
	Total    int64      `json:"total_bytes" jsonschema:"How much they have, as far as the registry has said it."`
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`
	Digest   string     `json:"digest,omitempty" jsonschema:"Of the image, when it is there."`
	Problem  string     `json:"problem,omitempty" jsonschema:"Why it failed."`
}

// Bounds of pulls.
const (
	maxPulls   = 2  // that run at once
	keptPulls  = 10 // that have ended, and are still told of
	maxProblem = 4000
	// maxSilence is how long nothing may come of an image.
	maxSilence = 10 * time.Minute
)

// Pulls are the pulls that a server makes on request, in memory alone.
type Pulls struct {
	store *oci.Store

	mu      sync.Mutex
	closed  bool
	all     []*pull // the oldest first
	news    chan struct{}
	changes uint64 // of which images there are
	running sync.WaitGroup
}

// pull is one Pull, and what ends it.
type pull struct {
	Pull
	cancel context.CancelCauseFunc
}

// NewPulls returns pulls into a store. It has to be closed.
func NewPulls(store *oci.Store) *Pulls { return &Pulls{store: store, news: make(chan struct{})} }

// The causes for which a pull ends that has not failed by itself.
var (
	errStops  = fault.New(fault.Canceled, "the server has stopped; what has come is kept for the next pull")
	errEnded  = fault.New(fault.Canceled, "somebody has ended it; what has come is kept for the next pull")
	errSilent = fault.New(fault.Connection, "for %v nothing more came of it", maxSilence)
)

// Start begins a pull, and describes it. If the image is being pulled already, that pull is returned.
func (p *Pulls) Start(ref, platform string) (Pull, error) {
	name, err := oci.CheckReference(ref, platform)
	if err != nil {
		return Pull{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Pull{}, errStops
	}
	running := 0
	for _, one := range p.all {
		if one.State != PullRunning {
			continue
		}
		if one.Image == name && one.Platform == platform {
			return one.Pull, nil
		}
		running++
	}
	if running >= maxPulls {
		return Pull{}, fault.Limit("pulls", running, maxPulls, "%d images are being pulled, and %d at once are allowed",
			running, maxPulls).Advise("Wait until one has ended, or end it")
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	one := &pull{Pull{ID: secret.ID(), Image: name, Platform: platform, State: PullRunning,
		Started: time.Now().UTC()}, cancel}
	p.all = append(p.all, one)
	p.tell()
	p.running.Go(func() { p.run(ctx, one, ref) })
	return one.Pull, nil
}

// run pulls an image until it is there.
func (p *Pulls) run(ctx context.Context, one *pull, ref string) {
	defer one.cancel(nil)
	silent := time.AfterFunc(maxSilence, func() { one.cancel(errSilent) })
	defer silent.Stop()
	var all oci.Transfer
	image, err := p.store.Pull(ctx, ref, oci.Options{Platform: one.Platform, Progress: func(layer oci.Progress) {
		silent.Reset(maxSilence)
		all.Add(layer)
		p.mu.Lock()
		defer p.mu.Unlock()
		one.Done, one.Total = all.Bytes()
		p.tell()
	}})
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	one.State, one.Digest, one.Ended = PullDone, image.Digest, &now
	if err != nil {
		if cause, ended := errors.AsType[*fault.Error](context.Cause(ctx)); ended {
			err = cause
		}
		one.State, one.Problem = PullFailed, fault.Printable(err.Error(), maxProblem)
	}
	for ended := p.ended(); ended > keptPulls; ended-- {
		i := slices.IndexFunc(p.all, func(q *pull) bool { return q.State != PullRunning })
		p.all = slices.Delete(p.all, i, i+1)
	}
	p.changes++
	p.tell()
}

// ended returns how many pulls have ended. The caller holds p.mu.
func (p *Pulls) ended() (n int) {
	for _, one := range p.all {
		if one.State != PullRunning {
			n++
		}
	}
	return n
}

// End ends a pull that runs. It reports whether there is one.
func (p *Pulls) End(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if one.ID == id && one.State == PullRunning {
			one.cancel(errEnded)
			return true
		}
	}
	return false
}

// List returns the pulls that run, and the last ones that have ended: the oldest first.
func (p *Pulls) List() []Pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Pull, 0, len(p.all))
	for _, one := range p.all {
		list = append(list, one.Pull)
	}
	return list
}

// Changed tells that the store has other images now, or that other templates use them.
func (p *Pulls) Changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	p.tell()
}

// News returns a channel that is closed at the next change, and a number that is another one after each change of which
// images there are, or what uses them.
func (p *Pulls) News() (next <-chan struct{}, changes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.news, p.changes
}

// tell tells of a change. The caller holds p.mu.
func (p *Pulls) tell() {
	close(p.news)
	p.news = make(chan struct{})
}

// Close ends all pulls, and waits for them. It may be called twice.
func (p *Pulls) Close() {
	p.mu.Lock()
	p.closed = true
	for _, one := range p.all {
		one.cancel(errStops)
	}
	p.mu.Unlock()
	p.running.Wait()
}
