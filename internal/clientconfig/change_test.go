package clientconfig

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var moment = time.Date(2026, 11, 21, 7, 8, 9, 0, time.UTC)

func write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func plan(t *testing.T, c Client, path string, s Server) *Change {
	t.Helper()
	ch, err := c.Plan(path, s)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// Every client: what was there is there still, a copy is kept with its mode, and
// a second time nothing happens.
func TestChangeEveryClient(t *testing.T) {
	for _, c := range All() {
		path := filepath.Join(t.TempDir(), "config.json")
		before := map[syntax]string{
			jsonc: "{\n  \"other\": [1, 2], // kept\n  \"" + c.sectionKey() +
				"\": {\n    \"mine\": {\"command\": \"x\"}\n  }\n}\n",
			toml:     "other = [1, 2] # kept\n\n[mcp_servers.mine]\ncommand = \"x\"\n",
			yamlMap:  "other: [1, 2] # kept\n\nextensions:\n    mine:\n        command: x\n",
			yamlList: "other: [1, 2] # kept\n\nmcpServers:\n- name: mine\n  command: x\n",
		}[c.syntax]
		write(t, path, before, 0o640)
		ch := plan(t, c, path, with("slt_abcdefghijklmnopqrstuvwxyz234567"))
		if ch.Unchanged() || ch.New {
			t.Fatalf("%s: nothing to do", c.ID)
		}
		if text(t, path) != before {
			t.Fatalf("%s: a plan writes", c.ID)
		}
		backup, err := ch.Write(moment)
		if err != nil || backup != path+".bak-20261121-070809" || text(t, backup) != before {
			t.Fatalf("%s: copy %q, %v", c.ID, backup, err)
		}
		for _, p := range []string{path, backup} {
			if st, err := os.Stat(p); err != nil || st.Mode() != 0o640 {
				t.Errorf("%s: %s has mode %v", c.ID, p, st.Mode())
			}
		}
		after := text(t, path)
		for _, line := range strings.Split(strings.TrimRight(before, "}\n "), "\n") {
			if !strings.Contains(after, line) {
				t.Errorf("%s: %q is not in\n%s", c.ID, line, after)
			}
		}
		if !strings.Contains(after, "slt_abc") {
			t.Errorf("%s: %s", c.ID, after)
		}
		again := plan(t, c, path, with("slt_abcdefghijklmnopqrstuvwxyz234567"))
		if !again.Unchanged() {
			t.Errorf("%s: a second time: %s", c.ID, again.Diff())
		}
		if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 2 {
			t.Errorf("%s: left behind: %v", c.ID, files)
		}
	}
}

func TestNewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "mcp.json")
	ch := plan(t, mustFind(t, "cursor"), path, server)
	if !ch.New || ch.Unchanged() || !strings.HasPrefix(ch.Diff(), "--- /dev/null\n+++ "+path+
		"\n@@ -0,0 +1,7 @@\n+{\n") {
		t.Errorf("%+v\n%s", ch, ch.Diff())
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("a plan makes folders")
	}
	backup, err := ch.Write(moment)
	if st, e := os.Stat(path); err != nil || backup != "" || e != nil || st.Mode() != 0o600 {
		t.Errorf("%q, %v, %v", backup, err, st)
	}
}

// The file behind a link is changed, and the link stays.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "dotfiles.json"), filepath.Join(dir, "mcp.json")
	write(t, real, "{}", 0o644)
	if err := os.Symlink("dotfiles.json", link); err != nil {
		t.Fatal(err)
	}
	ch := plan(t, mustFind(t, "cursor"), link, server)
	if _, err := ch.Write(moment); err != nil || ch.Path != real {
		t.Fatalf("%s: %v", ch.Path, err)
	}
	if to, err := os.Readlink(link); err != nil || to != "dotfiles.json" || !strings.Contains(text(t, real), "8000") {
		t.Errorf("%q, %v", to, err)
	}
	broken := filepath.Join(dir, "broken.json")
	if err := os.Symlink("nothing", broken); err != nil {
		t.Fatal(err)
	}
	if _, err := mustFind(t, "cursor").Plan(broken, server); err == nil ||
		!strings.Contains(err.Error(), "link to nothing") {
		t.Error(err)
	}
}

func TestNothingIsWritten(t *testing.T) {
	dir := t.TempDir()
	c := mustFind(t, "cursor")
	path := filepath.Join(dir, "mcp.json")
	write(t, path, "{ broken", 0o600)
	if _, err := c.Plan(path, server); err == nil || !strings.Contains(err.Error(),
		"is left as it is: it is not JSON") {
		t.Error(err)
	}
	if _, err := c.Plan(dir, server); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Error(err)
	}
	// One that was changed by the client in the meantime.
	write(t, path, "{}", 0o600)
	ch := plan(t, c, path, server)
	write(t, path, `{"new": 1}`, 0o600)
	if _, err := ch.Write(moment); err == nil || !strings.Contains(err.Error(), "changed in the meantime") ||
		text(t, path) != `{"new": 1}` {
		t.Error(err)
	}
	fresh := filepath.Join(dir, "fresh.json")
	ch = plan(t, c, fresh, server)
	write(t, fresh, "{}", 0o600)
	if _, err := ch.Write(moment); err == nil || text(t, fresh) != "{}" {
		t.Error(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("left behind: %v", files)
	}
}

func TestCopiesOfOneMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mcp.json")
	write(t, path, "{}", 0o600)
	for i, want := range []string{".bak-20261121-070809", ".bak-20261121-070809-1"} {
		s := server
		s.Name = []string{"a", "b"}[i]
		if backup, err := plan(t, mustFind(t, "cursor"), path, s).Write(moment); err != nil || backup != path+want {
			t.Errorf("%q, %v", backup, err)
		}
	}
}

func TestDiff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mcp.json")
	write(t, path, `{
  "a": 1,
  "b": 2,
  "c": 3,
  "mcpServers": {
    "sandlot": {
      "url": "http://localhost:8000/mcp",
      "headers": {
        "Authorization": "Bearer slt_aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      }
    }
  },
  "d": 4,
  "e": 5
}`, 0o600)
	ch := plan(t, mustFind(t, "cursor"), path, with("other-s3cret"))
	want := "--- " + path + "\n+++ " + path + `
@@ -6,7 +6,7 @@
     "sandlot": {
       "url": "http://localhost:8000/mcp",
       "headers": {
-        "Authorization": "Bearer [secret]"
+        "Authorization": "Bearer [secret]"
       }
     }
   },
`
	if got := ch.Diff(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	write(t, path, "{\"a\": 1}", 0o600)
	if got := plan(t, mustFind(t, "cursor"), path, server).Diff(); !strings.Contains(got,
		"-{\"a\": 1}\n\\ No newline at end of file\n+{") {
		t.Error(got)
	}
}
