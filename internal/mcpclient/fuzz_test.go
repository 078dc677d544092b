package mcpclient

import (
	"context"
	"testing"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/revision"
)

// FuzzMessages has a session take anything.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	f.Add([]byte(`[{"method":"ping","id":"x"},{"method":"notifications/progress","params":{"progressToken":1}}]`))
	f.Add([]byte(`{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"notifications":{}}}`))
	f.Add([]byte(`{"id":1,"error":{"code":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSession(deaf{}, Options{Handler: &ears{}}.withDefaults())
		defer s.Close()
		s.version.Store(revision.Stateful)
		c, err := s.registerCall("x", false)
		if err != nil {
			t.Fatal(err)
		}
		answered, ok := (receiver{s}).Receive(b, transport.NoReservation{})
		if answered != 0 && !ok {
			t.Fatal("what was no message has answered something")
		}
		c.queue.close()
	})
}

// deaf is a transport that leads nowhere.
type deaf struct{ transport.Transport }

func (deaf) Start(transport.Receiver, transport.Limits)     {}
func (deaf) Send(context.Context, transport.Outgoing) error { return nil }
func (deaf) Traits() transport.Traits                       { return transport.Traits{} }
func (deaf) Close() error                                   { return nil }
func (deaf) Abandon(int64)                                  {}
