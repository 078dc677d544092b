package fastpath

import (
	"testing"
	"testing/synctest"
	"time"
)

// The SDK has to see a session now and then, and a call counts for a while only.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := &Path{}, &cacheable{fingerprint: "x"}
		s.accepted = map[string]accepted{"x": {until: time.Now().Add(lifetime)}}
		time.Sleep(lifetime - 1)
		if _, ok := s.findAccepted(o); !ok {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Nanosecond)
		if _, ok := s.findAccepted(o); ok {
			t.Error("not forgotten")
		}
	})
}
