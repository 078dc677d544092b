package checkup

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// One checkup runs at a time: who asks meanwhile gets its report, and who leaves does not end it.
func TestOneAtATime(t *testing.T) {
	var begun atomic.Int32
	goOn, reported := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := &Checkups{Examine: func(_ context.Context, report func(Check)) {
		begun.Add(1)
		report(Check{Name: "a", OK: true, Detail: "fine"})
		once.Do(func() { close(reported) })
		<-goOn
		report(Check{Name: "b", Detail: "broken", Remedy: "mend it"})
	}}
	defer c.Close()
	left, leave := context.WithCancel(t.Context())
	leave()
	if _, err := c.Run(left); !errors.Is(err, context.Canceled) {
		t.Fatalf("who has left gets %v", err)
	}
	var all sync.WaitGroup
	reports := make([]Report, 5)
	for i := range reports {
		all.Go(func() { reports[i], _ = c.Run(t.Context()) })
	}
	<-reported
	if r := c.Last(); !r.Running || !r.OK || r.Started == nil || r.Ended != nil {
		t.Errorf("while it runs: %+v", r)
	}
	close(goOn)
	all.Wait()
	for _, r := range reports {
		// One that came after the end has made another one.
		if r.Running || r.OK || len(r.Checks) != 2 || r.Ended == nil {
			t.Errorf("%+v", r)
		}
	}
	if n := begun.Load(); n < 1 || n > 5 {
		t.Errorf("%d checkups", n)
	}
}

// Close ends the checkup, and none begins afterwards.
func TestClose(t *testing.T) {
	began := make(chan struct{})
	c := &Checkups{Examine: func(ctx context.Context, _ func(Check)) { close(began); <-ctx.Done() }}
	go c.Run(context.Background())
	<-began
	c.Close()
	c.Close()
	if r := c.Last(); r.Running || r.OK || len(r.Checks) != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := c.Run(t.Context()); err == nil {
		t.Error("a checkup began after the end")
	}
}

// What goes to the operator's page has no password, nothing that cannot be printed, and an end.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp: lookup postgres://sandlot:hunter2@db:5432/x": "dial tcp: lookup postgres://…@db:5432/x",
		"https://hunter2@example.com/a":                         "https://…@example.com/a",
		"host=db user=x password=hunter2 dbname=y":              "host=db user=x password=… dbname=y",
		`password='hunter2 hunter2' x`:                          `password=… x`,
		"GET https://a/b?api_key=hunter2&x=1: 403":              "GET https://a/b?api_key=…&x=1: 403",
		"Authorization: Bearer hunter2hunter2":                  "Authorization: Bearer …",
		`{"token":"hunter2"}`:                                   `{"token":…}`,
		"a\x1b[2Jb\u202ec":                                      "",
		"a sandbox booted, answered 42 for 6*7":                 "a sandbox booted, answered 42 for 6*7",
		"ssh://ann@host: it answers":                            "ssh://…@host: it answers",
	} {
		got := Clean(text)
		if strings.Contains(got, "hunter2") || strings.ContainsAny(got, "\x1b\u202e") || want != "" && got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	c := &Checkups{Examine: func(_ context.Context, report func(Check)) {
		for range 1000 {
			report(Check{Detail: strings.Repeat("x", 1<<20), OK: true})
		}
	}}
	defer c.Close()
	r, err := c.Run(t.Context())
	size := 0
	for _, one := range r.Checks {
		size += len(one.Detail)
	}
	if err != nil || size == 0 || size > maxChecks*(maxText+100) {
		t.Errorf("%d bytes, %v", size, err)
	}
}
