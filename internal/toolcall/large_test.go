package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/limit"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/tool"
)

// large makes tools hold a permit for a large result, which do makes.
func (w *world) large(do func(context.Context, tool.Call) (json.RawMessage, error)) {
	w.do = func(ctx context.Context, _ string, c tool.Call) (*tool.Result, error) {
		received := w.Limits.NewReservation(c.Principal.ID, limit.IncomingAnswerBytes)
		defer received.Release()
		if _, err := received.Enlarge(ctx); err != nil {
			return nil, err
		}
		raw, err := do(ctx, c)
		if err == nil {
			c.Reservation.TakeLarge(received)
		}
		return &tool.Result{Raw: raw}, err
	}
}

// A program that does not read a large result in time loses its connection; one that has read it keeps it. A result
// whose memory is lost before is not sent.
func TestLargeResultIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		raw := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
		wait := time.Duration(0)
		w.large(func(context.Context, tool.Call) (json.RawMessage, error) {
			time.Sleep(wait)
			return raw, nil
		})
		p := w.dial(w.box(ann.ID, "one"), tagged(""))
		p.lines.Buffer(nil, 2<<20)
		p.send(callA)
		p.want(`{"result":"xxx`)
		wait = time.Hour
		p.send(callA)
		p.want(`"code":"too_large","message":"the result, 1048578 bytes, was given up: it took over 2m0s`)
		wait = 0
		p.send(callA)
		part := make([]byte, writePart)
		var err error
		for n := 0; err == nil; n++ {
			if n == 10 {
				t.Fatal("it is not lost")
			}
			_, err = io.ReadFull(p, part)
			time.Sleep(stallLimit * 3 / 4)
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
}

// Whatever a tool and a program do, somebody else gets the permit.
func TestPermitIsFreed(t *testing.T) {
	text := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	for name, tt := range map[string]struct {
		tool    func(context.Context, tool.Call) (json.RawMessage, error)
		program func(p *program)
	}{
		"progress is not read": {func(_ context.Context, c tool.Call) (json.RawMessage, error) {
			for range 20 {
				c.Progress("a step")
			}
			return text, nil
		}, func(*program) {}},
		"progress is read slowly": {func(_ context.Context, c tool.Call) (json.RawMessage, error) {
			for range 20 {
				c.Progress("a step")
			}
			return text, nil
		}, func(p *program) {
			for p.next() != "" {
				time.Sleep(stallLimit / 2)
			}
		}},
		"the result is not read": {func(context.Context, tool.Call) (json.RawMessage, error) {
			return text, nil
		}, func(*program) {}},
		"a million blocks": {func(ctx context.Context, _ tool.Call) (json.RawMessage, error) {
			raw, _, err := catalog.Result(ctx, json.RawMessage(`{"content":[`+strings.Repeat(`{},`, 1_000_000)+`{}]}`), true)
			return raw, err
		}, func(p *program) { p.want(`has more than 100000 content blocks`) }},
		"a large error": {func(context.Context, tool.Call) (json.RawMessage, error) {
			return nil, &tool.ExternalError{Message: string(text)}
		}, func(*program) {}},
		"a cancelled call": {func(ctx context.Context, _ tool.Call) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, func(p *program) { p.Close() }},
		"a panic": {func(context.Context, tool.Call) (json.RawMessage, error) { panic("oh") },
			func(p *program) { p.want(`"error"`) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.large(tt.tool)
				var programs sync.WaitGroup
				defer programs.Wait()
				for _, user := range []auth.Principal{ann, auth.User("carl", false)} { // as many as there are permits
					p := w.dial(w.box(user.ID, "of "+user.ID), tagged(""))
					defer p.Close()
					p.send(callA)
					programs.Go(func() { tt.program(p) })
				}
				synctest.Wait()
				r := w.Limits.NewReservation("bob", limit.IncomingAnswerBytes)
				defer r.Release()
				if _, err := r.Enlarge(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A program that reads no progress for a minute loses its call and its connection, and gets no other line after the
// one of which it has a part.
func TestProgressIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ended := make(chan error, 1)
		w.do = func(ctx context.Context, _ string, c tool.Call) (*tool.Result, error) {
			c.Progress("a step")
			c.Progress("another step")
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
			}
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
		p := w.dial(w.box(ann.ID, "one"), tagged(""))
		p.send(callA)
		if _, err := io.ReadFull(p, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stallLimit + time.Second)
		if rest, err := io.ReadAll(p); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
		if err := <-ended; err == nil {
			t.Error("the call goes on")
		}
	})
}
