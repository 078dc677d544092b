// Command hostile is an agent that turns on its host: it serves honestly until
// the file /tmp/.hostile appears in its sandbox, and then does what that file
// says with the link to the host. It is for the tests.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

const order = "/tmp/.hostile"

func main() {
	if len(os.Args) > 1 && os.Args[1] == wire.ConnectCommand { // started by the server, beside the agent
		os.Exit(guest.Connect(os.Args[2:]))
	}
	c, err := guest.FromEnvironment()
	if err != nil {
		panic(err)
	}
	// In a container, the honest agent would not take a program of the sandbox for its host.
	c.Init = c.Init && process.InGVisor()
	host := c.Socket
	c.Socket = "/tmp/.between"
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		panic(err)
	}
	go guest.New(c).Run(context.Background())
	go func() {
		for {
			honest, err := l.Accept()
			if err != nil {
				panic(err)
			}
			go between(honest, host)
		}
	}()
	mode := ""
	for mode == "" {
		time.Sleep(20 * time.Millisecond)
		text, _ := os.ReadFile(order)
		mode = strings.TrimSpace(string(text))
	}
	close(turned)
	for ; ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", host); err == nil {
			if wire.Greet(conn, c.Secret) == nil {
				turn(mode, conn)
			}
			conn.Close()
		}
	}
}

// turned is closed when the order has come.
var turned = make(chan struct{})

// between relays one of the honest agent's connections until it breaks, or the
// order comes.
func between(honest net.Conn, path string) {
	defer honest.Close()
	host, err := net.Dial("unix", path)
	if err != nil {
		return
	}
	defer host.Close()
	over := make(chan struct{}, 2)
	go func() { io.Copy(host, honest); over <- struct{}{} }()
	go func() { io.Copy(honest, host); over <- struct{}{} }()
	select {
	case <-over:
	case <-turned:
	}
}

func flood(c net.Conn, b []byte) {
	b = bytes.Repeat(b, 1+4096/len(b))
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// turn does one hostile thing until the link breaks.
func turn(mode string, c net.Conn) {
	switch mode {
	case "silent":
		io.Copy(io.Discard, c)
	case "deaf":
		time.Sleep(time.Hour)
	case "noise":
		flood(c, []byte{0xff, 0, 0x41, 7})
	case "huge-frames":
		flood(c, []byte{0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	case "pings":
		flood(c, []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7})
	case "streams":
		for i := uint32(2); ; i += 2 {
			if _, err := c.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{0, 1, 0, 1}, i),
				0)); err != nil {
				return
			}
		}
	case "hangs-up":
	default:
		mux, err := yamux.Server(c, wire.HostMuxConfig())
		if err != nil {
			return
		}
		defer mux.Close()
		for {
			s, err := mux.AcceptStream()
			if err != nil {
				return
			}
			go answer(mode, s)
		}
	}
}

// answer does one hostile thing on each stream that the host opens.
func answer(mode string, s net.Conn) {
	defer s.Close()
	io.ReadFull(s, make([]byte, 1))
	switch mode {
	case "claims": // a message of 4 GiB that never comes
		s.Write([]byte{0xff, 0xff, 0xff, 0xff})
		time.Sleep(time.Hour)
	case "endless-events":
		for wire.WriteMessage(s,
			&agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Data: bytes.Repeat([]byte("x"),
				1<<20)}}}) == nil {
		}
	case "wrong-kind":
		wire.WriteMessage(s, &agentv1.RunEvent{Event: &agentv1.RunEvent_Executed{Executed: &agentv1.ExecDone{}}})
		time.Sleep(time.Hour)
	case "empty-event":
		wire.WriteMessage(s, &agentv1.RunEvent{})
		time.Sleep(time.Hour)
	case "large-result":
		wire.WriteMessage(s, &agentv1.RunEvent{Event: &agentv1.RunEvent_Evaluated{Evaluated: &agentv1.EvaluateDone{
			Stdout: &agentv1.Captured{Head: bytes.Repeat([]byte("x"), 15<<20), Total: 1 << 63,
				Path: "../../../../etc/passwd"}}}})
		time.Sleep(time.Hour)
	case "bytes":
		flood(s, []byte("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"))
	}
}
