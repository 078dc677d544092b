package rpc

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A silent response becomes an event stream with heartbeats, and then has the handler's
// response as an event, whatever kind of response it is.
func TestSilence(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":1,"error":{"code":-1}}`
	asJSON := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write([]byte(answer + "\n"))
	}
	asStream := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write([]byte("data: " + answer + "\n\n"))
		w.(http.Flusher).Flush()
	}
	heartbeat := ": still working\n\n"
	for name, tt := range map[string]struct {
		wait   time.Duration
		stream bool
		answer func(http.ResponseWriter)
		code   int
		kind   string
		body   string
	}{
		"at once, as JSON":     {0, true, asJSON, 400, "application/json", answer + "\n"},
		"at once, as a stream": {0, true, asStream, 200, "text/event-stream", "data: " + answer + "\n\n"},
		"late, as JSON": {25 * time.Second, true, asJSON, 200, "text/event-stream", heartbeat + heartbeat +
			"event: message\ndata: " + answer + "\n\n"},
		"late, as a stream": {25 * time.Second, true, asStream, 200, "text/event-stream", heartbeat + heartbeat +
			"data: " +
			answer + "\n\n"},
		"late, to one who cannot": {25 * time.Second, false, asJSON, 400, "application/json", answer + "\n"},
		"nothing at all": {25 * time.Second, true, func(http.ResponseWriter) {}, 200, "text/event-stream",
			heartbeat + heartbeat},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := httptest.NewRecorder()
				p := NewKeepAlive(rec, tt.stream)
				time.Sleep(tt.wait)
				tt.answer(p)
				p.Stop()
				time.Sleep(time.Minute) // no heartbeat comes after Stop
				if rec.Code != tt.code || !strings.HasPrefix(rec.Header().Get("Content-Type"), tt.kind) ||
					rec.Body.String() != tt.body {
					t.Errorf("%d %s %q", rec.Code, rec.Header().Get("Content-Type"), rec.Body)
				}
			})
		})
	}
}
