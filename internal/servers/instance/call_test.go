package instance

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
