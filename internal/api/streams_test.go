package api

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/conn"
)

// A client that goes away is noticed although its input is taken by nobody.
func TestTheClientGoesWhileItsInputWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ours := net.Pipe()
		stream, agent := net.Pipe()
		defer agent.Close()
		ended := make(chan bool)
		go func() { ended <- (&pipe{client: ours, stream: stream}).run(ours) }()
		go io.Copy(io.Discard, client)
		if err := command.WriteFrame(client, command.Stdin, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		client.Close()
		if <-ended {
			t.Error("the process is said to have ended")
		}
		if _, err := agent.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the stream goes on: %v", err)
		}
	})
}

// A client whose input waits is told nothing but what the process says.
func TestInputThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ours := net.Pipe()
		stream, agent := net.Pipe()
		ended := make(chan bool, 1)
		go func() { ended <- (&pipe{client: ours, stream: stream}).run(ours) }()
		go command.WriteFrame(client, command.Stdin, []byte("input"))
		buf := make([]byte, command.MaxFrame)
		for range 3 { // while the input waits
			if kind, data, err := command.ReadFrame(client, buf); kind != command.Stdout || len(data) > 0 ||
				err != nil {
				t.Fatalf("kind %d, %q, %v", kind, data, err)
			}
		}
		if kind, data, err := command.ReadFrame(agent, buf); kind != command.Stdin || string(data) != "input" ||
			err != nil {
			t.Fatalf("kind %d, %q, %v", kind, data, err)
		}
		go func() {
			command.WriteFrame(agent, command.Stderr, []byte("oh"))
			command.WriteFrame(agent, command.Exit, []byte{0, 0, 0, 7})
		}()
		for _, want := range []struct {
			kind byte
			data string
		}{{command.Stderr, "oh"}, {command.Exit, "\x00\x00\x00\x07"}} {
			if kind, data, err := command.ReadFrame(client, buf); kind != want.kind || string(data) != want.data ||
				err != nil {
				t.Errorf("kind %d, %q, %v, want %v", kind, data, err, want)
			}
		}
		if !<-ended {
			t.Error("the process is said not to have ended")
		}
		if _, err := client.Read(buf); err != io.EOF {
			t.Errorf("the connection goes on: %v", err)
		}
	})
}

// A client that takes nothing of what a process says for a minute is cut off.
func TestAClientThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ours := net.Pipe()
		stream, agent := net.Pipe()
		defer client.Close()
		go func() {
			for command.WriteFrame(agent, command.Stdout, make([]byte, 1000)) == nil {
			}
		}()
		began := time.Now()
		if (&pipe{client: ours, stream: stream}).run(ours) {
			t.Error("the process is said to have ended")
		}
		if took := time.Since(began); took < conn.Stall || took > 2*conn.Stall {
			t.Errorf("after %v", took)
		}
		agent.Close()
	})
}

// When the server stops, a client is told so, and its process is hung up; one that takes nothing does not delay that.
func TestTheServerStops(t *testing.T) {
	for name, reads := range map[string]bool{"a client": true, "a client that takes nothing": false} {
		synctest.Test(t, func(t *testing.T) {
			client, ours := net.Pipe()
			stream, agent := net.Pipe()
			defer client.Close()
			defer agent.Close()
			stops, ended := make(chan struct{}), make(chan bool, 1)
			go func() { ended <- (&pipe{client: ours, stream: stream, stops: stops}).run(ours) }()
			go func() {
				for command.WriteFrame(agent, command.Stdout, []byte("out")) == nil && !reads {
				}
			}()
			synctest.Wait()
			begun := time.Now()
			close(stops)
			for buf := make([]byte, command.MaxFrame); reads; {
				kind, data, err := command.ReadFrame(client, buf)
				if err != nil {
					t.Fatalf("%s is not told: %v", name, err)
				}
				if kind != command.Exit {
					continue
				}
				if code, why, err := command.ExitStatus(data); code != 129 || why != serverStopped || err != nil {
					t.Errorf("%s is told %d, %q, %v", name, code, why, err)
				}
				break
			}
			if <-ended {
				t.Errorf("%s: the process is said to have ended", name)
			}
			if d := time.Since(begun); d > 2*hangUpLimit { // of the bubble's clock
				t.Errorf("%s delays the end by %v", name, d)
			}
			if _, err := io.Copy(io.Discard, agent); err != nil {
				t.Errorf("%s: the stream goes on: %v", name, err)
			}
		})
	}
}

// deadlines is a connection that calls during when a deadline for writing is about to be set.
type deadlines struct {
	net.Conn
	during func()
	last   time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	if during := d.during; during != nil {
		d.during = nil
		during()
	}
	d.last = at
	return nil
}

// A write that is about to begin does not extend the final deadline.
func TestTheFinalDeadlineStays(t *testing.T) {
	d := &deadlines{}
	p := &pipe{client: d}
	final, set := time.Now().Add(hangUpLimit), make(chan struct{})
	d.during = func() {
		go func() {
			p.setFinal(final)
			close(set)
		}()
		select { // it does not get there, or it has got there, and is overwritten
		case <-set:
		case <-time.After(50 * time.Millisecond):
		}
	}
	p.extend()
	<-set
	if !d.last.Equal(final) {
		t.Errorf("it was extended by %v", d.last.Sub(final))
	}
}
