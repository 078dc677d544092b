package test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestTheClientIsKilled while its input waits for a process that takes none:
// the process ends, and the session is free again.
func TestTheClientIsKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	for over, flags := range map[string][]string{"socket": {"--state-dir", s.State}, "network": {"--server", s.URL}} {
		t.Run(over, func(t *testing.T) {
			cmd := exec.Command(binary(t), append(flags, "exec", "--session", "home", "--", "sh", "-c",
				"echo started; exec sleep 1234")...)
			cmd.Env = s.env
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			written := make(chan int64, 1)
			go func() {
				defer in.Close()
				var n int64
				for yes := bytes.Repeat([]byte("y\n"), 32<<10); ; {
					k, err := in.Write(yes)
					n += int64(k)
					if err != nil {
						written <- n
						return
					}
				}
			}()
			// Everything on the way is full when the client takes no more.
			until(t, "the session works", func() bool { return status(c) == "processing" })
			time.Sleep(2 * time.Second)
			cmd.Process.Kill()
			cmd.Wait()
			if n := <-written; n < 512<<10 {
				t.Errorf("only %d bytes were on the way", n)
			}
			until(t, "the session is free", func() bool { return status(c) != "processing" })
			until(t, "the process ends", func() bool {
				return c.shell("home", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 123[4]'").Text == "0"
			})
		})
	}
}

// status is the home's.
func status(c *client) string {
	list, _ := c.call("get_sessions", nil).Fields["sessions"].([]any)
	for _, e := range list {
		if m, ok := e.(map[string]any); ok && m["home"] == true {
			text, _ := m["status"].(string)
			return text
		}
	}
	return ""
}
