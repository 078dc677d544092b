package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/hashicorp/yamux"
)

// incoming is a connection that gives what it was given.
type incoming struct {
	net.Conn
	r io.Reader
}

func (i incoming) Read(p []byte) (int, error) { return i.r.Read(p) }

func sent(kind byte, flags uint16, length int, body []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	b = binary.BigEndian.AppendUint32(b, 2)
	return append(binary.BigEndian.AppendUint32(b, uint32(length)), body...)
}

func TestStrict(t *testing.T) {
	const data, window, ping, away = 0, 1, 2, 3
	const syn, ack, fin, rst = 1, 2, 4, 8
	looksLikeAPing := bytes.Repeat([]byte{0, ping, 0, syn}, 3000)
	good := [][]byte{sent(window, ack, 9, nil), sent(data, ack, len(looksLikeAPing), looksLikeAPing), sent(data, fin, 0, nil), sent(window, rst, 0, nil), sent(away, 0, 0, nil)}
	tests := []struct {
		name string
		last []byte
		bad  bool
	}{
		{"answers", nil, false},
		{"a stream by a window", sent(window, syn, 0, nil), true},
		{"a stream by data", sent(data, syn, 3, []byte("abc")), true},
		{"a stream with more flags", sent(window, syn|ack|fin, 0, nil), true},
		{"a ping", sent(ping, syn, 1, nil), true},
		{"an answer to no ping", sent(ping, ack, 1, nil), true},
	}
	for _, tt := range tests {
		all := append(bytes.Join(good, nil), tt.last...)
		for how, r := range map[string]io.Reader{"at once": bytes.NewReader(all), "byte by byte": iotest.OneByteReader(bytes.NewReader(all)), "in halves": iotest.HalfReader(bytes.NewReader(all))} {
			t.Run(tt.name+"/"+how, func(t *testing.T) {
				got, err := io.ReadAll(Strict(incoming{r: r}))
				switch {
				case tt.bad && !errors.Is(err, ErrForward):
					t.Errorf("%d bytes, %v, want ErrForward", len(got), err)
				case !tt.bad && (err != nil || !bytes.Equal(got, all)):
					t.Errorf("%d of %d bytes, %v", len(got), len(all), err)
				}
			})
		}
	}
}

// It lets through all that an honest agent sends.
func TestStrictWithYamux(t *testing.T) {
	a, b := pair(t)
	host, err := yamux.Client(Strict(Whole(a)), Mux())
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	guest, err := yamux.Server(Whole(b), Mux())
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	go echo(guest)
	for _, n := range []int{1, 12, 100_000, 6 << 20} {
		if err := through(host, random(n), 70_000); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if s, err := guest.OpenStream(); err == nil {
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Error("the sandbox got a stream")
		}
	}
	<-host.CloseChan()
}
