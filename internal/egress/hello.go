package egress

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	maxHello     = 64 << 10
	helloTimeout = 10 * time.Second

	recordHandshake = 0x16
	recordMajor     = 0x03
)

var (
	errHello     = errors.New("the start of TLS is over 64 KiB")
	errHelloRead = errors.New("the ClientHello was read")
)

// helloReader is the sandbox's connection while crypto/tls reads the ClientHello from it. It
// stores all bytes that were read, and discards what crypto/tls writes.
type helloReader struct {
	net.Conn
	data   []byte
	offset int // how many of these bytes crypto/tls has read
}

func (o *helloReader) Read(b []byte) (int, error) {
	if o.offset == len(o.data) {
		if err := o.readMore(len(b)); err != nil {
			return 0, err
		}
	}
	n := copy(b, o.data[o.offset:])
	o.offset += n
	return n, nil
}

// readMore waits for up to n further bytes.
func (o *helloReader) readMore(n int) error {
	n = min(n, maxHello-len(o.data))
	if n == 0 {
		return errHello
	}
	b := make([]byte, n)
	n, err := o.Conn.Read(b)
	o.data = append(o.data, b[:n]...)
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

func (o *helloReader) Write(b []byte) (int, error)     { return len(b), nil }
func (o *helloReader) Close() error                    { return nil }
func (o *helloReader) SetDeadline(time.Time) error     { return nil }
func (o *helloReader) SetReadDeadline(time.Time) error { return nil }

// serverName reads a TLS ClientHello, however many records it has, and returns its server
// name, which may be empty. isTLS is false when the bytes are not TLS. For an encrypted
// ClientHello it returns the outer name: the inner one cannot be read.
func (o *helloReader) serverName() (name string, isTLS bool, err error) {
	for len(o.data) < 2 && (len(o.data) == 0 || o.data[0] == recordHandshake) {
		if err := o.readMore(512); errors.Is(err, os.ErrDeadlineExceeded) {
			return "", true, err // without the error, a ClientHello that is sent late would pass unchecked
		} else if err != nil {
			return "", false, nil
		}
	}
	if o.data[0] != recordHandshake || o.data[1] != recordMajor {
		return "", false, nil
	}
	found := false
	c := tls.Server(o, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, found = h.ServerName, true
		return nil, errHelloRead
	}})
	err = c.Handshake()
	if found {
		err = nil
	}
	return name, true, err
}
