package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"sandlot/proto/agentv1"
)

var key = bytes.Repeat([]byte{7}, SecretLen)

func TestGreeting(t *testing.T) {
	wrong := bytes.Repeat([]byte{8}, SecretLen)
	nearly := append([]byte(nil), key...)
	nearly[SecretLen-1]++
	tests := []struct {
		name   string
		secret []byte
		good   bool
	}{{"right", key, true}, {"wrong", wrong, false}, {"wrong in its last byte", nearly, false},
		{"zero", make([]byte, SecretLen), false}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, guest := net.Pipe()
			defer host.Close()
			defer guest.Close()
			greeted := make(chan error, 1)
			go func() { greeted <- Greet(guest, tt.secret) }()
			_, err := Admit(host, key, nil)
			if (err == nil) != tt.good {
				t.Errorf("Admit: %v, want it to be let in: %v", err, tt.good)
			}
			if err != nil && strings.Contains(err.Error(), string(key)) {
				t.Error("the error holds the secret")
			}
			switch err := <-greeted; {
			case tt.good && err != nil:
				t.Errorf("Greet: %v", err)
			case !tt.good && !errors.Is(err, ErrRefused):
				t.Errorf("Greet: %v, want ErrRefused", err)
			}
		})
	}
}

// otherSide returns one end of a connection, and runs do with the other.
func otherSide(t *testing.T, do func(net.Conn)) net.Conn {
	ours, theirs := net.Pipe()
	go func() {
		do(theirs)
		theirs.Close()
	}()
	t.Cleanup(func() { ours.Close() })
	return ours
}

func TestAdmitRefuses(t *testing.T) {
	good := append([]byte(Greeting), key...)
	other := append([]byte("SANDLOT9"), key...)
	for name, said := range map[string][]byte{"nothing": nil, "half": good[:20], "all but one byte": good[:len(good)-1],
		"another protocol": other, "HTTP": []byte(strings.Repeat("GET / HTTP/1.1\r\n", 5))[:len(good)]} {
		t.Run(name, func(t *testing.T) {
			c := otherSide(t, func(c net.Conn) {
				c.Write(said)
				if len(said) >= len(good) {
					io.Copy(io.Discard, c)
				}
			})
			if _, err := Admit(c, key, nil); err == nil {
				t.Error("it was let in")
			}
		})
	}
}

// What follows the greeting belongs to whoever reads next.
func TestAdmitReadsNotTooMuch(t *testing.T) {
	c := otherSide(t, func(c net.Conn) {
		c.Write(append([]byte(Greeting), key...))
		io.ReadFull(c, make([]byte, 1))
		c.Write([]byte("next"))
	})
	if _, err := Admit(c, key, nil); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "next" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

// A process in the sandbox that dials and is silent, or slow, holds the host
// for no longer than the greeting may take.
func TestSlowGreeting(t *testing.T) {
	for name, do := range map[string]func(net.Conn){
		"silent": func(c net.Conn) { time.Sleep(time.Hour) },
		"drip": func(c net.Conn) {
			for _, b := range append([]byte(Greeting), key...) {
				time.Sleep(time.Second)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := otherSide(t, do)
				start := time.Now()
				if _, err := Admit(c, key, nil); err == nil {
					t.Error("it was let in")
				}
				if took := time.Since(start); took > greetingTimeout { // of the bubble's clock
					t.Errorf("it held the host for %s", took)
				}
				c.Close()
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// An agent waits no longer for a host that says nothing, and takes no other
// answer than the right one for a welcome.
func TestGreetAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := otherSide(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, len(Greeting)+SecretLen))
			time.Sleep(time.Hour)
		})
		if err := Greet(c, key); err == nil {
			t.Error("silence is a welcome")
		}
		time.Sleep(2 * time.Hour)
	})
	for _, answer := range []byte{0, nak, 'H', 0xff} {
		c := otherSide(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, len(Greeting)+SecretLen))
			c.Write([]byte{answer})
		})
		if err := Greet(c, key); !errors.Is(err, ErrRefused) {
			t.Errorf("answer %#x: %v, want ErrRefused", answer, err)
		}
	}
}

// The deadline of the greeting does not stay on the connection.
func TestTheDeadlineIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, guest := net.Pipe()
		defer host.Close()
		defer guest.Close()
		go Greet(guest, key)
		if _, err := Admit(host, key, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		go guest.Write([]byte("x"))
		if _, err := io.ReadFull(host, make([]byte, 1)); err != nil {
			t.Errorf("reading an hour later: %v", err)
		}
	})
}

func message(n int) *agentv1.ReadFileResponse {
	return &agentv1.ReadFileResponse{Data: bytes.Repeat([]byte("x"), n), Size: uint64(n)}
}

func TestMessages(t *testing.T) {
	for _, n := range []int{0, 1, 500, 512, 65_536, 65_537, 1 << 20, MaxMessage - 100} {
		var b bytes.Buffer
		want := message(n)
		if err := WriteMessage(&b, want); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		b.WriteString("next")
		got := new(agentv1.ReadFileResponse)
		if err := ReadMessage(iotest.HalfReader(&b), got); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%d bytes came out as another message", n)
		}
		if b.String() != "next" {
			t.Errorf("%d bytes: it read too much or too little: %d left", n, b.Len())
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var b bytes.Buffer
	if err := WriteMessage(&b, message(MaxMessage)); err == nil || b.Len() > 0 {
		t.Errorf("a message that is too large: %v, %d bytes were written", err, b.Len())
	}
	for _, size := range []uint32{MaxMessage + 1, 1 << 31, 1<<32 - 1} {
		r := bytes.NewReader(binary.BigEndian.AppendUint32(nil, size))
		if err := ReadMessage(r, message(0)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a claimed size of %d: %v, want a refusal before anything is read", size, err)
		}
	}
}

// allocated says how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAClaimedSizeAllocatesNothing(t *testing.T) {
	said := append(binary.BigEndian.AppendUint32(nil, MaxMessage), 1, 2, 3)
	var err error
	n := allocated(func() { err = ReadMessage(bytes.NewReader(said), message(0)) })
	if err == nil {
		t.Error("a message that was cut was read")
	}
	if n > 1<<20 {
		t.Errorf("%d bytes were allocated for a message of 3 bytes that claims 16 MiB", n)
	}
}

func TestCutMessages(t *testing.T) {
	var b bytes.Buffer
	if err := WriteMessage(&b, message(100_000)); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	for _, n := range []int{0, 1, 3, 4, 5, 70_000, len(whole) - 1} {
		if err := ReadMessage(bytes.NewReader(whole[:n]), message(0)); err == nil {
			t.Errorf("the first %d of %d bytes were read as a message", n, len(whole))
		}
	}
	// The last bytes may come together with the end of the stream.
	if err := ReadMessage(iotest.DataErrReader(bytes.NewReader(whole)), message(0)); err != nil {
		t.Errorf("a whole message whose last bytes come with the end: %v", err)
	}
}

func TestNoMessage(t *testing.T) {
	said := append(binary.BigEndian.AppendUint32(nil, 4), 0xff, 0xff, 0xff, 0xff)
	if err := ReadMessage(bytes.NewReader(said), message(0)); err == nil {
		t.Error("bytes that are not a message were read as one")
	}
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	payloads := [][]byte{nil, {1}, bytes.Repeat([]byte{2}, MaxFrame)}
	for i, p := range payloads {
		if err := WriteFrame(&b, byte(i), p); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&b)
	buf := make([]byte, MaxFrame)
	for i, want := range payloads {
		kind, got, err := ReadFrame(r, buf)
		if err != nil || kind != byte(i) || !bytes.Equal(got, want) {
			t.Errorf("frame %d: kind %d, %d bytes, %v", i, kind, len(got), err)
		}
	}
	if _, _, err := ReadFrame(r, buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v, want the end", err)
	}
}

func TestFramesAreBounded(t *testing.T) {
	var b bytes.Buffer
	if err := WriteFrame(&b, FrameStdout, make([]byte, MaxFrame+1)); err == nil || b.Len() > 0 {
		t.Errorf("a frame that is too large: %v, %d bytes written", err, b.Len())
	}
	buf := make([]byte, MaxFrame)
	for _, n := range []uint32{MaxFrame + 1, 1<<32 - 1} {
		head := binary.BigEndian.AppendUint32([]byte{FrameStdout}, n)
		if _, _, err := ReadFrame(bytes.NewReader(append(head, make([]byte, 10)...)), buf); err == nil ||
			errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a claimed size of %d: %v, want a refusal", n, err)
		}
	}
	// A buffer that is smaller than it should be is no way to crash the host.
	if _, _, err := ReadFrame(bytes.NewReader([]byte{1, 0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
		make([]byte, 8)); err == nil {
		t.Error("a frame larger than the buffer was read")
	}
}

func TestCutFrames(t *testing.T) {
	var b bytes.Buffer
	if err := WriteFrame(&b, FrameExit, []byte{0, 0, 0, 3}); err != nil {
		t.Fatal(err)
	}
	for n := range b.Len() {
		if _, _, err := ReadFrame(bytes.NewReader(b.Bytes()[:n]), make([]byte, MaxFrame)); err == nil {
			t.Errorf("the first %d bytes were read as a frame", n)
		}
	}
}

// One frame is one write: two writers of one stream must not mix.
func TestAFrameIsOneWrite(t *testing.T) {
	var writes [][]byte
	w := writer(func(p []byte) (int, error) {
		writes = append(writes, slices.Clone(p))
		return len(p), nil
	})
	if err := errors.Join(WriteFrame(w, FrameStdout, []byte("abc")), WriteMessage(w, message(3))); err != nil ||
		len(writes) != 2 {
		t.Errorf("%d writes, %v, want 2", len(writes), err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestUser(t *testing.T) {
	for _, u := range []User{{}, {UID: 1, GID: 2, Groups: []uint32{3, 4}, Name: "n\"e", Home: "/h"}, {Workdir: "/w"}} {
		if got, err := ParseUser(u.String()); err != nil || !reflect.DeepEqual(got, u) {
			t.Errorf("%+v, %v, want %+v", got, err, u)
		}
	}
	if u, err := ParseUser(""); err != nil || !reflect.DeepEqual(u, User{}) {
		t.Errorf("without a value: %+v, %v", u, err)
	}
	for _, bad := range []string{"x", "[]", `{"uid":-1}`, `{"uid":4294967296}`, `{"groups":"x"}`} {
		if u, err := ParseUser(bad); err == nil {
			t.Errorf("%s: %+v", bad, u)
		}
	}
}

// TestEnvNames: no variable of the agent is missing in the list of those that a runtime sets.
func TestEnvNames(t *testing.T) {
	text, err := os.ReadFile("wire.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`Env\w+\s+= "(SANDLOT_AGENT_\w+)"`).FindAllSubmatch(text, -1) {
		if name := string(m[1]); name != EnvPrefix && name != EnvProgram { // which begin others
			names = append(names, string(m[1]))
		}
	}
	listed := slices.Clone(EnvNames)
	slices.Sort(listed)
	if slices.Sort(names); len(names) < 7 || !slices.Equal(names, listed) {
		t.Errorf("the constants are %q, and listed are %q", names, listed)
	}
}
