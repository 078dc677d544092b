package once

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// The users of a service count together, and lose their own results before anybody else does.
func TestAServicePushesNobodyOut(t *testing.T) {
	d := newDesk()
	defer d.Close()
	d.runs(t, "user:ann", "k")
	d.runs(t, "user:ann", "more") // ann has more than any one user of the service
	for i := range maxReplies + 10 {
		d.runs(t, fmt.Sprintf("user:svc/u%d", i), "k")
	}
	if d.runs(t, "user:ann", "k") {
		t.Error("the users of a service pushed ann's result out")
	}
	large := strings.Repeat("x", maxOwnerReplyBytes)
	for i := range maxReplyBytes / maxOwnerReplyBytes {
		_, _ = d.call(fmt.Sprintf("user:svc/large%d", i), "k", says(large))
	}
	if d.runs(t, "user:bob", "k"); d.runs(t, "user:bob", "k") {
		t.Error("the reply that was just finished was forgotten")
	}
}

// A run that has begun is not repeated, even if its answer was refused for want of memory.
func TestABegunRunIsNotRepeated(t *testing.T) {
	d := newDesk()
	defer d.Close()
	ran := 0
	for range 2 {
		_, err := d.Do(t.Context(), Request{Name: "t", Key: "k"}, func(ctx context.Context) (*tool.Result, error) {
			ran++
			inner, _ := withEffect(ctx)
			Begun(inner)
			return nil, fault.New(fault.ResourceLimit, "no memory for the answer")
		})
		if !fault.Is(err, fault.ResourceLimit) {
			t.Error(err)
		}
	}
	if ran != 1 {
		t.Errorf("it ran %d times", ran)
	}
}
