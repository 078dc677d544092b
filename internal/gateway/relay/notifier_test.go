package relay

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestNotifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Notifier
		var sent []string
		block := make(chan struct{})
		say := func(log bool, key, text string) {
			o.Put(Notification{Log: log, Key: key, Send: func() { <-block; sent = append(sent, text) }})
		}
		say(false, "", "first")
		synctest.Wait() // it is being sent
		say(false, "", "progress")
		say(true, "", "oldest log")
		say(false, "u", "update")
		say(false, "u", "the same update")
		for i := range maxUnsent - 2 {
			say(true, "", fmt.Sprint("log ", i))
		}
		began := time.Now()
		o.Flush(t.Context(), 2*time.Second)
		if time.Since(began) != 2*time.Second {
			t.Errorf("flush took %v of a client that does not read", time.Since(began))
		}
		close(block)
		o.Flush(t.Context(), 2*time.Second)
		if len(sent) != maxUnsent+1 || slices.Contains(sent, "oldest log") ||
			slices.Contains(sent, "the same update") ||
			!slices.Equal(sent[:3], []string{"first", "progress", "update"}) {
			t.Errorf("sent %q", sent)
		}
		if o.Sending() {
			t.Error("it still sends")
		}
		o.End()
		say(false, "", "late")
		synctest.Wait()
		if slices.Contains(sent, "late") {
			t.Error("something was sent after the end")
		}
	})
}

// The queue is limited in bytes too.
func TestNotifierBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Notifier
		block, sent := make(chan struct{}), 0
		for range 10 {
			o.Put(Notification{Size: maxUnsentBytes / 2, Send: func() { <-block; sent++ }})
			synctest.Wait()
		}
		close(block)
		if o.Flush(t.Context(), time.Minute); sent != 3 || o.bytes != 0 { // the first was on its way
			t.Errorf("%d were sent, %d bytes are left", sent, o.bytes)
		}
	})
}
