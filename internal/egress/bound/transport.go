package bound

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// Bounds of HTTP/2, of one connection, and of the header of a request or a response, in bytes.
const (
	maxHeader       = 128 << 10
	maxStreams      = 100
	streamBuffer    = 1 << 20
	connBuffer      = 3 << 19
	continueTimeout = time.Second
)

// dialed is the key of the connection that the transport uses, in the context of NewClientConn.
type dialed struct{}

// newTransport returns the transport of all exchanges. It dials nothing.
func newTransport() *http.Transport {
	t := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c, ok := ctx.Value(dialed{}).(*tls.Conn); ok {
				return c, nil
			}
			return nil, errors.New("there is no further connection")
		},
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader, ExpectContinueTimeout: continueTimeout,
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: connBuffer,
			MaxReceiveBufferPerStream: streamBuffer},
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	return t
}
