package test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// life is a user's view of a session of theirs, which they alone use.
type life struct {
	user, token string
	id          string // empty: there is none
	value       int    // of the variable x, acknowledged
	meant       int    // the value of a cell that was not acknowledged
	paused      bool
	doing       string // what was not acknowledged; empty: nothing
	did         map[string]int
	lost        int // how often the user was told that variables are gone
}

// ask sends a request, and returns the answer's status and text, or the error of a server that dies.
func (l *life) ask(s *server, method, path, body string) (status int, text string, err error) {
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+l.token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 500 {
		err = fmt.Errorf("%d %s", resp.StatusCode, b)
	}
	return resp.StatusCode, string(b), err
}

// cell runs code in a session of Python.
func (l *life) cell(s *server, session, code string) (status int, text string, err error) {
	body, err := json.Marshal(args{"code": code, "session_id": session})
	if err != nil {
		return 0, "", err
	}
	return l.ask(s, "POST", "/v1/tools/execute_code", string(body))
}

// step does one thing with the session, and returns an error if it was not acknowledged.
func (l *life) step(s *server) error {
	path := "/v1/sessions/" + l.id
	var status int
	var text string
	var err error
	switch n := rand.IntN(10); {
	case l.id == "":
		l.doing = "new"
		status, text, err = l.cell(s, "new", "x = 0")
	case l.paused:
		l.doing = "resume"
		status, text, err = l.ask(s, "POST", path+"/resume", "")
	case n < 4:
		l.doing, l.meant = "set", l.value+1
		status, text, err = l.cell(s, l.id, fmt.Sprintf("x = %d", l.meant))
	case n < 6:
		l.doing = "pause"
		status, text, err = l.ask(s, "POST", path+"/pause", "")
	case n < 7:
		l.doing = "fork"
		status, text, err = l.ask(s, "POST", path+"/fork", "{}")
	case n < 8:
		l.doing = "stop"
		status, text, err = l.ask(s, "DELETE", path, "")
	default: // it falls asleep
		l.did["rest"]++
		time.Sleep(time.Duration(rand.IntN(2500)) * time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	if status >= 400 {
		s.t.Errorf("%s of %s: %d %s", l.doing, l.id, status, text)
	}
	l.acknowledged(s, text)
	return nil
}

// acknowledged takes down what was done, and what the answer says of it.
func (l *life) acknowledged(s *server, text string) {
	var answer struct {
		Session string           `json:"session_id"`
		Copies  []map[string]any `json:"sessions"`
	}
	switch l.doing {
	case "new", "fork":
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			s.t.Errorf("%s: %v: %s", l.doing, err, text)
		}
		if l.doing == "new" {
			l.id, l.value, l.paused = answer.Session, 0, false
			break
		}
		if len(answer.Copies) == 1 { // the user goes on with the copy
			l.id, _ = answer.Copies[0]["session_id"].(string)
		} else if answer.Session != "" {
			l.id = answer.Session
		} else {
			s.t.Errorf("a fork: %s", text)
		}
	case "stop":
		l.id, l.paused = "", false
	case "set":
		l.value = l.meant
	case "pause", "resume":
		l.paused = l.doing == "pause"
	}
	l.did[l.doing]++
	l.doing, l.meant = "", 0
}

// compare compares the session with what was acknowledged, after a kill.
func (l *life) compare(t *testing.T, s *server) {
	t.Helper()
	status, text, err := l.ask(s, "GET", "/v1/sessions", "")
	var list struct {
		Sessions []struct {
			ID     string `json:"session_id"`
			Home   bool   `json:"home"`
			Status string `json:"status"`
		} `json:"sessions"`
	}
	if err != nil || status != 200 || json.Unmarshal([]byte(text), &list) != nil {
		t.Fatalf("the sessions: %d %s %v", status, text, err)
	}
	state := map[string]string{}
	for _, one := range list.Sessions {
		state[one.ID] = one.Status
		if one.ID != l.id && !one.Home { // the user has left it, or did not learn of it
			if status, text, err := l.ask(s, "DELETE", "/v1/sessions/"+one.ID, ""); err != nil || status != 204 {
				t.Fatalf("stopping %s: %d %s %v", one.ID, status, text, err)
			}
		}
	}
	doing := l.doing
	l.doing = ""
	if l.id == "" {
		return
	}
	is, there := state[l.id]
	switch {
	case !there && doing == "stop":
		l.id, l.paused, l.meant = "", false, 0
		return
	case !there:
		t.Fatalf("%s of %s is gone; it was doing %q", l.id, l.user, doing)
	case doing == "pause" || doing == "resume":
		l.paused = is == "paused"
	case (is == "paused") != l.paused && doing != "stop":
		t.Fatalf("%s of %s is %s; it was doing %q, and is paused: %v", l.id, l.user, is, doing, l.paused)
	}
	if is == "paused" {
		if status, text, err := l.ask(s, "POST", "/v1/sessions/"+l.id+"/resume", ""); err != nil || status != 200 {
			t.Fatalf("resuming %s: %d %s %v", l.id, status, text, err)
		}
		l.paused = false
	}
	status, text, err = l.cell(s, l.id, "print('x is', x if 'x' in globals() else None)")
	told := strings.Contains(text, "was started again")
	switch {
	case err != nil || status != 200:
		t.Fatalf("%s of %s after %q: %d %s %v", l.id, l.user, doing, status, text, err)
	case strings.Contains(text, fmt.Sprintf("x is %d\"", l.value)):
	case l.meant != 0 && strings.Contains(text, fmt.Sprintf("x is %d\"", l.meant)):
		l.value = l.meant
	case strings.Contains(text, "x is None") && told:
		l.lost++
		t.Logf("%s of %s lost its variables after %q, and says so: %s", l.id, l.user, doing, text)
		l.value = 0
		if status, text, err := l.cell(s, l.id, "x = 0"); err != nil || status != 200 {
			t.Fatalf("%d %s %v", status, text, err)
		}
	default:
		t.Fatalf("%s of %s after %q: x was %d, or %d: %s", l.id, l.user, doing, l.value, l.meant, text)
	}
	l.meant = 0
}

// TestKilledInEveryState: sessions that are begun, used, put to sleep, woken, paused, resumed, copied and stopped while the
// server is killed at any moment are as was acknowledged, and whoever lost variables is told. SANDLOT_KILLS=200 is how
// often it is killed.
func TestKilledInEveryState(t *testing.T) {
	t.Parallel()
	s := start(t, sleepy...)
	var lives []*life
	for n := range 4 {
		user := fmt.Sprintf("user%d", n)
		lives = append(lives, &life{user: user, token: s.token(user), did: map[string]int{}})
	}
	kills := numberOf(t, "SANDLOT_KILLS", 6)
	for range kills {
		var working sync.WaitGroup
		for _, l := range lives {
			working.Go(func() {
				for l.step(s) == nil {
				}
			})
		}
		time.Sleep(time.Duration(300+rand.IntN(2500)) * time.Millisecond)
		s.kill()
		working.Wait()
		transport.CloseIdleConnections()
		s.launch()
		for _, l := range lives {
			working.Go(func() { l.compare(t, s) })
		}
		working.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	all, lost := map[string]int{}, 0
	for _, l := range lives {
		lost += l.lost
		for what, n := range l.did {
			all[what] += n
		}
	}
	t.Logf("%d kills; acknowledged were %v; variables were lost, and that was told, %d times", kills, all, lost)
	for _, what := range []string{"new", "set", "pause", "resume", "fork", "stop", "rest"} {
		if all[what] == 0 && kills >= 50 {
			t.Errorf("no session did %q", what)
		}
	}
}
