package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sandlot/internal/agent/agenttest"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/guest/files"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// withFiles gives the sandboxes of an edge the agent's own code for files, in a folder of this test. It returns the path.
func (e *edge) withFiles() string {
	e.t.Helper()
	dir, err := filepath.EvalSymlinks(e.t.TempDir())
	if err != nil {
		e.t.Fatal(err)
	}
	f := files.New(func() string { return "" }, nil)
	if err := agenttest.SetRoot(f, dir); err != nil {
		e.t.Fatal(err)
	}
	e.fake.Files = f
	return dir
}

func putFile(t *testing.T, dir, name, content string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// filesUse is a user of the routes about files.
type filesUse struct {
	*edge
	token string
}

func (u filesUse) ask(method, path, body string, headers ...string) answer {
	return do(u.Handler(), method, "/v1/sessions/home"+path, body, append(headers, "Authorization", u.token)...)
}

func (u filesUse) moves(from, to string, headers ...string) answer {
	return u.ask("POST", "/move", fmt.Sprintf(`{"from":%q,"to":%q}`, from, to), headers...)
}

// owner returns a user whose home lives.
func (e *edge) owner(name string) filesUse {
	e.t.Helper()
	u := filesUse{e, e.token(name)}
	l, err := e.Hub.Sessions.Wake(e.t.Context(), auth.User(name, false), "home")
	if err != nil {
		e.t.Fatal(err)
	}
	l.Release()
	return u
}

func TestFolders(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	dir := e.withFiles()
	ann := e.owner("ann")
	putFile(t, dir, "a.txt", "one")
	putFile(t, dir, "odd \u202e<b>", "x")
	if err := os.Symlink("/etc", filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	got := ann.ask("GET", "/folders"+dir, "")
	var names []string
	for _, f := range got.json()["files"].([]any) {
		f := f.(map[string]any)
		names = append(names, f["name"].(string))
		if (f["etag"] == nil) != (f["type"] == "symlink") {
			t.Errorf("%v", f)
		}
	}
	if want := []string{"a.txt", "away", "odd \u202e<b>"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	stat := ann.ask("GET", "/stat"+dir+"/a.txt", "").json()
	if stat["name"] != "a.txt" || stat["size"] != 3.0 || stat["type"] != "file" {
		t.Errorf("%v", stat)
	}
	etag := stat["etag"].(string)
	for what, tt := range map[string]struct {
		got    answer
		status int
		code   string
	}{
		"no file":               {ann.ask("GET", "/stat"+dir+"/none", ""), 404, "NOT_FOUND"},
		"a file as a folder":    {ann.ask("GET", "/folders"+dir+"/a.txt", ""), 400, "FILE_ACCESS_ERROR"},
		"outside":               {ann.ask("GET", "/folders/etc", ""), 400, "FILE_ACCESS_ERROR"},
		"outside by a link":     {ann.ask("GET", "/folders"+dir+"/away", ""), 400, "FILE_ACCESS_ERROR"},
		"a zero byte":           {ann.ask("GET", "/stat"+dir+"/%00", ""), 400, "INVALID_PARAMETERS"},
		"a folder is there":     {ann.ask("POST", "/folders"+dir+"/a.txt", ""), 412, "FILE_CHANGED"},
		"moved onto it":         {ann.moves(dir+"/a.txt", dir+"/away"), 412, "FILE_CHANGED"},
		"moved out":             {ann.moves(dir+"/a.txt", "/etc/x"), 400, "FILE_ACCESS_ERROR"},
		"no absolute path":      {ann.moves("a.txt", dir+"/b"), 400, "INVALID_PARAMETERS"},
		"an old ETag":           {ann.moves(dir+"/a.txt", dir+"/b", "If-Match", `"00"`), 412, "FILE_CHANGED"},
		"a weak ETag":           {ann.moves(dir+"/a.txt", dir+"/b", "If-Match", "W/"+etag), 412, "FILE_CHANGED"},
		"no ETag":               {ann.moves(dir+"/a.txt", dir+"/b", "If-Match", "abc"), 400, "INVALID_PARAMETERS"},
		"removed unseen":        {ann.ask("DELETE", "/files"+dir+"/a.txt", "", "If-Match", `"ab"`), 412, "FILE_CHANGED"},
		"removed, not there":    {ann.ask("DELETE", "/files"+dir+"/none", "", "If-Match", "*"), 412, "FILE_CHANGED"},
		"tags of If-None-Match": {ann.ask("PUT", "/files"+dir+"/n", "x", "If-None-Match", etag), 400, "INVALID_PARAMETERS"},
		"many ETags": {ann.ask("DELETE", "/files"+dir+"/a.txt", "", "If-Match", strings.Repeat(`"ab",`, 100)), 400,
			"INVALID_PARAMETERS"},
		"a new session": {do(ann.Handler(), "GET", "/v1/sessions/new/folders/x", "", "Authorization", ann.token), 404,
			"NOT_FOUND"},
	} {
		if tt.got.StatusCode != tt.status || tt.got.json()["title"] != tt.code {
			t.Errorf("%s: %d %s", what, tt.got.StatusCode, tt.got.body)
		}
	}
	for what, got := range map[string]answer{
		"make":   ann.ask("POST", "/folders"+dir+"/new/deep", ""),
		"move":   ann.moves(dir+"/a.txt", dir+"/new/b.txt", "If-Match", `"00", `+etag),
		"remove": ann.ask("DELETE", "/files"+dir+"/away", ""),
	} {
		if got.StatusCode != http.StatusNoContent && what != "move" {
			t.Errorf("%s: %d %s", what, got.StatusCode, got.body)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "new/b.txt")); string(b) != "one" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Stat("/etc"); err != nil {
		t.Error(err)
	}
}

// Nobody reaches the files of others, or sees that there are any.
func TestFoldersOfOthers(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	dir := e.withFiles()
	putFile(t, dir, "a.txt", "one")
	e.owner("ann")
	all, err := e.Hub.Sessions.List(t.Context(), auth.User("ann", false), "")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	bob := e.token("bob")
	for _, x := range [][2]string{{"GET", "/stat" + dir}, {"GET", "/folders" + dir}, {"POST", "/folders" + dir + "/x"},
		{"POST", "/move"}, {"DELETE", "/files" + dir + "/a.txt"}, {"GET", "/results"}} {
		body := ""
		if x[1] == "/move" {
			body = fmt.Sprintf(`{"from":%q,"to":%q}`, dir+"/a.txt", dir+"/b")
		}
		for _, id := range []string{all[0].ID, strings.Repeat("a", 26)} {
			got := do(e.Handler(), x[0], "/v1/sessions/"+id+x[1], body, "Authorization", bob, "If-Match", `"ab"`)
			if got.StatusCode != 404 || got.json()["title"] != "SESSION_NOT_FOUND" {
				t.Errorf("%s %s: %d %s", x[0], x[1], got.StatusCode, got.body)
			}
		}
	}
	c := dialLive(t, e.liveServer(), bob)
	c.says(`{"op":"open","channel":1,"kind":"files","args":{"session_id":%q,"path":%q}}`, all[0].ID, dir)
	c.expects("closed 1 SESSION_NOT_FOUND")
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

// A move leads past no rule: neither the file's own, nor one about something in a folder.
func TestMoveAsksAboutAll(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	dir := e.withFiles()
	ann := e.owner("ann")
	putFile(t, dir, "d/in/secret", "x")
	putFile(t, dir, "plain", "x")
	e.Hub.Decide = func(q policy.Question) policy.Decision {
		if strings.Contains(q.Detail, "secret") && q.Operation == policy.FileRead ||
			strings.HasSuffix(q.Detail, "/locked/in") && q.Operation == policy.FileWrite ||
			strings.HasSuffix(q.Detail, "/plain") && q.Operation == policy.FileList {
			return policy.Decision{Reason: fault.New(fault.Forbidden, forbids)}
		}
		return policy.Decision{Effect: policy.Allow}
	}
	for from, to := range map[string]string{"/d/in/secret": "/open", "/d": "/open", "/d/in": "/locked/in"} {
		if got := ann.moves(dir+from, dir+to); got.StatusCode != 403 {
			t.Errorf("%s to %s: %d %s", from, to, got.StatusCode, got.body)
		}
	}
	got := ann.ask("GET", "/folders"+dir, "").json()
	if got["withheld"] != 1.0 || len(got["files"].([]any)) != 1 {
		t.Errorf("%v", got)
	}
	if got := ann.moves(dir+"/plain", dir+"/other"); got.StatusCode != 204 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// The live channel tells what is in a folder, and what changes. It wakes no session.
func TestLiveFiles(t *testing.T) {
	var refuses atomic.Bool
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}, func(c *hub.Config) {
		c.Decide = func(policy.Question) policy.Decision {
			if refuses.Load() {
				return policy.Decision{Reason: fault.New(fault.Forbidden, forbids)}
			}
			return policy.Decision{Effect: policy.Allow}
		}
	})
	dir := e.withFiles()
	putFile(t, dir, "a", "one")
	token := e.token("ann")
	c := dialLive(t, e.liveServer(), token)
	c.says(`{"op":"open","channel":1,"kind":"files","args":{"session_id":"home","path":%q}}`, dir)
	c.expects("closed 1 SESSION_NOT_FOUND") // nobody has a home that was never used
	e.owner("ann")
	c.says(`{"op":"open","channel":2,"kind":"files","args":{"session_id":"home","path":"a"}}`)
	c.expects("closed 2 INVALID_PARAMETERS path must be")
	c.says(`{"op":"open","channel":3,"kind":"files","args":{"session_id":"home","path":"%s/none"}}`, dir)
	c.expects("opened 3")
	c.expects("closed 3 NOT_FOUND")
	c.says(`{"op":"open","channel":4,"kind":"files","args":{"session_id":"home","path":%q}}`, dir)
	c.expects("opened 4")
	c.expects(`data 4 {"change":"all","files":[{"name":"a","type":"file","size":3,`)
	putFile(t, dir, "b", "new")
	for { // a part of the change may have been seen first
		m := c.expects(`data 4 {"change":"put","file":{"name":"b","type":"file","size":`)
		if strings.Contains(string(m.Data), `"size":3`) {
			break
		}
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	c.expects(`data 4 {"change":"removed","name":"a"}`)
	for n := range 3 {
		c.says(`{"op":"open","channel":%d,"kind":"files","args":{"session_id":"home","path":%q}}`, 10+n, dir)
		c.expects(fmt.Sprintf("opened %d", 10+n))
		c.expects(fmt.Sprintf("data %d", 10+n))
	}
	c.says(`{"op":"open","channel":20,"kind":"files","args":{"session_id":"home","path":%q}}`, dir)
	c.expects("error 20 RESOURCE_LIMIT_EXCEEDED 4 channels of files are open")
	refuses.Store(true)
	putFile(t, dir, "c", "unseen")
	for range 4 {
		if m := c.hears(); m.Op != "closed" || m.Error == nil || m.Error.Status != 403 {
			t.Errorf("after the rules have changed: %v", m)
		}
	}
}

// A principal watches so many folders, however many connections there are.
func TestWatchedFoldersAreBounded(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	dir := e.withFiles()
	ann := e.owner("ann")
	url := e.liveServer()
	for range 4 {
		c := dialLive(t, url, ann.token)
		for n := range 4 {
			c.says(`{"op":"open","channel":%d,"kind":"files","args":{"session_id":"home","path":%q}}`, n+1, dir)
			c.expects(fmt.Sprintf("opened %d", n+1))
			c.expects(fmt.Sprintf("data %d", n+1))
		}
	}
	c := dialLive(t, url, ann.token)
	c.says(`{"op":"open","channel":1,"kind":"files","args":{"session_id":"home","path":%q}}`, dir)
	c.expects("closed 1 RESOURCE_LIMIT_EXCEEDED 16 folders are watched")
}
