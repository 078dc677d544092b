// Package checkup owns the checks of the machine that a server makes on request: one at a time, within a time, and with
// nothing secret in what they find.
package checkup

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/fault"
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok" jsonschema:"Sandboxes work, as far as this check goes."`
	Note   bool   `json:"note,omitempty" jsonschema:"It is a warning, or about something that is not needed."`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty" jsonschema:"What the operator can do."`
}

// Report is what a checkup has found.
type Report struct {
	Running bool       `json:"running" jsonschema:"A checkup runs, and there may be more checks."`
	OK      bool       `json:"ok" jsonschema:"No check has failed so far."`
	Checks  []Check    `json:"checks"`
	Started *time.Time `json:"started,omitempty" jsonschema:"When the last checkup began; missing: there was none."`
	Ended   *time.Time `json:"ended,omitempty"`
}

// Bounds of a checkup.
const (
	maxChecks = 200
	maxText   = 4000 // bytes of a detail or a remedy
	// maxTime is how long a checkup may take: a sandbox that boots, and daemons that do not answer.
	maxTime = 3 * time.Minute
)

// Checkups makes checkups, one at a time, and keeps the last report.
type Checkups struct {
	// Examine checks the machine, and calls report after each check. It does not return before all is removed that it
	// has made.
	Examine func(ctx context.Context, report func(Check))
	// Stops is closed when the server stops: nobody waits longer, and what runs ends.
	Stops <-chan struct{}

	mu      sync.Mutex
	closed  bool
	last    Report
	now     *run // the one that runs; nil: none does
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// run is one checkup.
type run struct {
	ended  chan struct{} // closed at its end, when report is there
	report Report
}

// Last returns the report of the checkup that runs, or of the last one.
func (c *Checkups) Last() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report()
}

// report returns a copy of the last report. The caller holds c.mu.
func (c *Checkups) report() Report {
	r := c.last
	r.Running, r.Checks = c.now != nil, append([]Check{}, c.last.Checks...)
	return r
}

// Run makes a checkup, or waits for the one that runs. The checkup goes on when ctx ends.
func (c *Checkups) Run(ctx context.Context) (Report, error) {
	now, err := c.begin()
	if err != nil {
		return Report{}, err
	}
	select {
	case <-now.ended:
		return now.report, nil
	case <-c.Stops:
		return Report{}, errStops
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
}

var errStops = fault.New(fault.Canceled, "the server stops")

// begin begins a checkup, unless one runs, and returns the one that runs.
func (c *Checkups) begin() (*run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, errStops
	case c.now != nil:
		return c.now, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxTime)
	began, now := time.Now().UTC(), &run{ended: make(chan struct{})}
	c.last, c.now, c.cancel = Report{OK: true, Started: &began}, now, cancel
	c.running.Go(func() {
		defer cancel()
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-c.Stops:
				cancel()
			case <-ended:
			}
		}()
		c.Examine(ctx, c.add)
		if ctx.Err() != nil {
			c.add(Check{Name: "time", Detail: "the checks were ended before they were complete",
				Remedy: "Run `sandlot doctor` on the server's machine, which takes the time that it needs"})
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		end := time.Now().UTC()
		c.last.Ended, c.now = &end, nil
		now.report = c.report()
		close(now.ended)
	})
	return now, nil
}

// add adds a check to the report.
func (c *Checkups) add(one Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last.OK = c.last.OK && one.OK
	if len(c.last.Checks) < maxChecks {
		one.Name, one.Detail, one.Remedy = Clean(one.Name), Clean(one.Detail), Clean(one.Remedy)
		c.last.Checks = append(c.last.Checks, one)
	}
}

// Close ends the checkup that runs, and waits for it. It may be called twice.
func (c *Checkups) Close() {
	c.mu.Lock()
	c.closed = true
	if c.cancel != nil {
		c.cancel()
	}
	c.mu.Unlock()
	c.running.Wait()
}

// secrets are texts of errors that may have a secret: what is before the @ of an address, and values with such a name.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"']*(?:@|%40)`),
	regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`(?i)\b([a-z0-9_.-]*(?:password|passwd|secret|token|api_?key|access_?key|signature|sig)["']?\s*[=:]\s*)` +
		`(?:"[^"]*"|'[^']*'|[^\s&"',;]+)`),
}

// Clean returns a text as people may see it who may see what is wrong with a machine: bounded, without what cannot be
// printed, and without passwords and keys as addresses and settings have them.
func Clean(text string) string {
	// Twice as much as stays: what is cut off here ends in what is cut off below.
	text = fault.Printable(text, 2*maxText)
	for i, s := range secrets {
		with := "${1}…"
		if i == 0 {
			with = "${1}…@"
		}
		text = s.ReplaceAllString(text, with)
	}
	return strings.TrimSpace(fault.Printable(text, maxText))
}

// Failed returns the checks that have failed.
func (r Report) Failed() []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.OK })
}
