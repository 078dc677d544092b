package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// keeper is a server that keeps what it is sent.
type keeper struct {
	asked []string // method, path and body
	url   string
}

func keeps(t *testing.T) *keeper {
	t.Helper()
	home(t)
	k := &keeper{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		k.asked = append(k.asked, r.Method+" "+r.URL.Path+" "+string(body))
		row := `{"name":"GH","created":"2026-03-04T05:06:07Z","changed":"2026-03-04T05:06:08Z","readable":%v,"used_by":["my docs"]}`
		if r.Method == "GET" {
			fmt.Fprintf(w, `{"secrets":[`+row+`]}`, false)
		} else {
			fmt.Fprintf(w, row, true)
		}
	}))
	t.Cleanup(s.Close)
	k.url = s.URL
	return k
}

// run runs a command with that as its input.
func (k *keeper) run(t *testing.T, want int, in io.Reader, args ...string) (all string) {
	t.Helper()
	var out bytes.Buffer
	if code := Main(append([]string{"--server", k.url, "secret"}, args...), in, &out, &out); code != want {
		t.Errorf("%q: exit code %d, want %d: %s", args, code, want, out.String())
	}
	if strings.Contains(out.String(), "hunter") {
		t.Errorf("%q prints a value: %s", args, out.String())
	}
	return out.String()
}

func (k *keeper) was(t *testing.T, want string) {
	t.Helper()
	if len(k.asked) != 1 || k.asked[0] != want {
		t.Errorf("the server was asked %q, want %q", k.asked, want)
	}
	k.asked = nil
}

func TestSecret(t *testing.T) {
	k := keeps(t)
	for in, want := range map[string]string{"hunter2": "hunter2", "hunter2\n": "hunter2", "hunter2\r\n": "hunter2",
		"two\nlines\n\n": "two\nlines\n", " x ": " x "} {
		says(t, k.run(t, 0, strings.NewReader(in), "set", "GH"), "GH is stored", "${secret:GH}",
			"my docs takes it up at its next start: sandlot mcp restart 'my docs'")
		k.was(t, "PUT /v1/secrets/GH "+want)
	}
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("hunter of a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.run(t, 0, strings.NewReader("not this"), "set", "GH", "--file", file)
	k.was(t, "PUT /v1/secrets/GH hunter of a file")
	k.run(t, 1, strings.NewReader("not this"), "set", "GH", "--file", file+".none")
	k.run(t, 0, strings.NewReader("x"), "set", "A/../B?c")
	k.was(t, "PUT /v1/secrets/A/../B?c x") // the path of one name

	// A value as an argument is refused, and not repeated.
	for _, args := range [][]string{{"set", "GH", "hunter2"}, {"set"}} {
		says(t, k.run(t, 2, strings.NewReader("x"), args...), "give only a name")
	}
	if len(k.asked) > 0 {
		t.Errorf("the server was asked %q", k.asked)
	}

	says(t, k.run(t, 0, nil, "list"), "GH ", "created 2026-03-04T05:06:07Z", "changed 2026-03-04T05:06:08Z",
		"used by my docs", "store it again with `sandlot secret set GH`")
	says(t, k.run(t, 0, nil, "list", "--json"), `"name": "GH"`, `"readable": false`, `"my docs"`)
	k.asked = nil
	says(t, k.run(t, 0, nil, "remove", "GH"), "GH is removed", "my docs refers to it")
	k.was(t, "DELETE /v1/secrets/GH ")
}

// A value that is typed is not shown.
func TestSecretOnATerminal(t *testing.T) {
	k := keeps(t)
	for typed, code := range map[string]int{"hunter2": 0, strings.Repeat("hunter2", 700): 1} {
		terminal, in, err := pty.Open()
		if err != nil {
			t.Skip("no terminals here: ", err)
		}
		shown := make(chan string, 1)
		go func() {
			var all []byte
			buf := make([]byte, 4096)
			for {
				n, err := terminal.Read(buf)
				all = append(all, buf[:n]...)
				if err != nil {
					shown <- string(all)
					return
				}
			}
		}()
		go func() {
			time.Sleep(200 * time.Millisecond) // what is typed before it is asked for is shown
			terminal.WriteString(typed + "\n")
		}()
		says(t, k.run(t, code, in, "set", "GH"), "Value of GH (it is not shown): ")
		if code == 0 {
			k.was(t, "PUT /v1/secrets/GH hunter2")
		} else if len(k.asked) > 0 {
			t.Error("a part of a long line was stored")
		}
		in.Close()
		terminal.Close()
		if got := <-shown; strings.Contains(got, "hunter") {
			t.Errorf("the terminal shows %.200q", got)
		}
	}
}
