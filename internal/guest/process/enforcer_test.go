package process

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// A small program goes before a larger process that the agent does not offer, unless that has a fifth of the limit more.
func TestLargest(t *testing.T) {
	start := func(score string) int {
		t.Helper()
		c := exec.Command("sh", "-c", `x=$(head -c 20000000 /dev/zero | tr "\0" x); echo; read y`)
		if score != "" {
			c = exec.Command("sh", "-c", `echo; read y`)
		}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			_ = c.Wait()
		})
		if score != "" {
			if err := os.WriteFile("/proc/"+strconv.Itoa(c.Process.Pid)+"/oom_score_adj", []byte(score), 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return c.Process.Pid
	}
	big, small := start(""), start(strconv.Itoa(programScore+int(scoreOf(os.Getpid()))))
	if victim, size := largest(0, 512<<20); victim != small || size > smallProcess {
		t.Errorf("of %d, and %d, a program: %d with %d bytes", big, small, victim, size)
	}
	for _, limit := range []uint64{0, 32 << 20} {
		if victim, size := largest(0, limit); victim != big || size < smallProcess {
			t.Errorf("with the limit %d, of %d, and %d, a program: %d with %d bytes", limit, big, small, victim, size)
		}
	}
	if victim, _ := largest(small, 512<<20); victim != big {
		t.Errorf("without the program: %d", victim)
	}
}
