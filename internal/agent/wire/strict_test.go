package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

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
	good := [][]byte{sent(window, ack, 9, nil), sent(data, ack, len(looksLikeAPing), looksLikeAPing),
		sent(data, fin, 0, nil), sent(window, rst, 0, nil), sent(away, 0, 0, nil)}
	otherVersion := sent(window, 0, 0, nil)
	otherVersion[0] = 1
	tests := []struct {
		name string
		last []byte
		want error
	}{
		{"answers", nil, nil},
		{"a stream by a window", sent(window, syn, 0, nil), ErrUnsolicited},
		{"a stream by data", sent(data, syn, 3, []byte("abc")), ErrUnsolicited},
		{"a stream with more flags", sent(window, syn|ack|fin, 0, nil), ErrUnsolicited},
		{"a ping", sent(ping, syn, 1, nil), ErrUnsolicited},
		{"an answer to no ping", sent(ping, ack, 1, nil), ErrUnsolicited},
		{"another version", otherVersion, ErrBadFrame},
		{"another type", sent(4, 0, 0, nil), ErrBadFrame},
		{"more than a window", sent(data, 0, hostWindow+1, nil), ErrBadFrame},
		{"more than a window, with a sign", sent(data, 0, -1, nil), ErrBadFrame},
	}
	for _, tt := range tests {
		all := append(bytes.Join(good, nil), tt.last...)
		for how, r := range map[string]io.Reader{"at once": bytes.NewReader(all),
			"byte by byte": iotest.OneByteReader(bytes.NewReader(all)),
			"in halves":    iotest.HalfReader(bytes.NewReader(all))} {
			t.Run(tt.name+"/"+how, func(t *testing.T) {
				s := Strict(incoming{r: r})
				got, err := io.ReadAll(s)
				switch {
				case !errors.Is(err, tt.want):
					t.Errorf("%d bytes, %v, want %v", len(got), err, tt.want)
				case tt.want == nil && !bytes.Equal(got, all):
					t.Errorf("%d of %d bytes", len(got), len(all))
				}
				if _, err := s.Read(make([]byte, 1)); tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("after that: %v", err)
				}
			})
		}
	}
}

// Control frames are bounded by the second.
func TestStrictFlood(t *testing.T) {
	second := bytes.Repeat(sent(1, 0, 1, nil), maxControl-1)
	synctest.Test(t, func(t *testing.T) {
		in := &incoming{r: bytes.NewReader(second)}
		s := Strict(in)
		for range 3 {
			in.r = bytes.NewReader(second)
			if _, err := io.Copy(io.Discard, struct{ io.Reader }{s}); err != nil {
				t.Fatalf("as many as an agent may send: %v", err)
			}
			time.Sleep(2 * time.Second)
		}
		in.r = bytes.NewReader(bytes.Repeat(second, 2))
		if _, err := io.Copy(io.Discard, struct{ io.Reader }{s}); !errors.Is(err, ErrFlood) {
			t.Errorf("twice as many at once: %v, want ErrFlood", err)
		}
	})
}

// It lets through all that an agent that keeps to the protocol sends.
func TestStrictWithYamux(t *testing.T) {
	a, b := pair(t)
	host, err := yamux.Client(Strict(Coalesce(a)), HostMuxConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	guest, err := yamux.Server(Coalesce(b), HostMuxConfig())
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
