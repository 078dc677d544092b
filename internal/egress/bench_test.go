package egress

import (
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
)

// benchmarkStreams measures how many bytes come down n connections at once.
func benchmarkStreams(b *testing.B, n int) {
	r := newRig(b, &Policy{Mode: Public})
	const piece = 8 << 20
	zero := make([]byte, 256<<10)
	r.serve("20.0.0.1:1", func(c *net.TCPConn) {
		for {
			if _, err := c.Write(zero); err != nil {
				return
			}
		}
	})
	var clients []*client
	for range n {
		clients = append(clients, r.connected(toAddr("20.0.0.1", 1)))
	}
	b.SetBytes(int64(n) * piece)
	begun := cpu(b)
	for b.Loop() {
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				buf := make([]byte, 64<<10)
				for left := piece; left > 0; {
					k, err := c.Read(buf[:min(len(buf), left)])
					if left -= k; err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(cpu(b)-begun)/float64(b.N)/float64(n*piece>>20), "cpu-ns/MiB")
}

// cpu is the time that this process has used, both ends of the test included:
// it says more than the clock on a machine that others use.
func cpu(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkStream1(b *testing.B)   { benchmarkStreams(b, 1) }
func BenchmarkStreams50(b *testing.B) { benchmarkStreams(b, 50) }

// BenchmarkConnect measures a connection with one echo, the agent's connection
// to the host included.
func BenchmarkConnect(b *testing.B) {
	r := newRig(b, &Policy{Mode: Allowlist, Allow: rules(b, "a.example")})
	r.serve("20.0.0.1:1", echo)
	r.name("a.example", "20.0.0.1")
	for b.Loop() {
		c := r.connected(toName("a.example", 1))
		c.roundTrip("x")
		c.Close()
		<-c.done
	}
}

// BenchmarkDirect is what BenchmarkConnect is compared with.
func BenchmarkDirect(b *testing.B) {
	r := newRig(b, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	for b.Loop() {
		c, err := r.dial(b.Context(), "tcp", "20.0.0.1:1")
		if err != nil {
			b.Fatal(err)
		}
		io.WriteString(c, "x")
		io.ReadFull(c, make([]byte, 1))
		c.Close()
	}
}
