package instance

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/limit"
	"sandlot/internal/mcpclient/transport"
)

// slowClient is a client whose user takes an hour to answer.
type slowClient struct{ client }

func (slowClient) Ask(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	time.Sleep(time.Hour)
	return json.RawMessage(`{}`), nil
}

// After its user has answered, a call has the whole limit again, however long the user took.
func TestLimitAfterAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := New(Config{Owner: anyOwner{}})
		limit := i.CallLimit()
		c, err := i.start(t.Context(), slowClient{"A"}, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := i.watch(t.Context(), c)
		defer stop()
		// The question ends between two ends of the limit, so that a clock that only went on would end the
		// call too early.
		time.Sleep(limit / 3)
		if _, err := i.HandleRequest(t.Context(), "elicitation/create", json.RawMessage(`{"message":"m"}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(limit - time.Second)
		if err := context.Cause(ctx); err != nil {
			t.Fatalf("%v after its user answered, a call ended: %v", limit-time.Second, err)
		}
		i.signOfLife(c)
		time.Sleep(limit - time.Second)
		if err := context.Cause(ctx); err != nil {
			t.Fatalf("%v after a sign of life, a call ended: %v", limit-time.Second, err)
		}
		time.Sleep(2 * time.Second)
		if err := context.Cause(ctx); !errors.Is(err, transport.ErrTimeout) {
			t.Fatalf("%v after the last sign of life: %v", limit+time.Second, err)
		}
	})
}

// A result whose memory is lost is given up while it is read.
func TestResultIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw := json.RawMessage(`{"content":[` + strings.Repeat(`{},`, 20_000) + `{}]}`)
		received := limit.New(limit.Default).NewReservation("ann", limit.IncomingAnswerBytes)
		r := &Request{Large: true, received: received}
		defer r.Release()
		if _, _, err := r.Result(t.Context(), raw); err != nil {
			t.Errorf("without a permit: %v", err)
		}
		lost, err := received.Enlarge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Result(t.Context(), raw); err != nil {
			t.Errorf("in time: %v", err)
		}
		<-lost.Done()
		if _, _, err := r.Result(t.Context(), raw); err == nil ||
			!strings.Contains(err.Error(), "was given up: it took over") {
			t.Errorf("too late: %v", err)
		}
	})
}
