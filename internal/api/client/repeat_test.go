package client

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/api/protocol"
)

// try is a request as a server got it.
type try struct{ key, age, body string }

// flaky is a server whose connections break. Its answers are functions, one for each request.
func flaky(t *testing.T, answers ...http.HandlerFunc) (c *Client, tries func() []try) {
	t.Helper()
	var mu sync.Mutex
	var got []try
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		h := r.Header
		got = append(got, try{h.Get(protocol.IdempotencyKey), h.Get(protocol.IdempotencyAge), string(body)})
		answer := answers[min(len(got), len(answers))-1]
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	c, err := New("", s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	return c, func() []try {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

func lose(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func loseInTheMiddle(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	io.WriteString(w, `{"x":`)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func made(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"x":"made"}`) }

func refuse(title string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"title":"`+title+`","detail":"it is `+title+`"}`)
	}
}

// A request that makes something has a key, and is sent again with it when its connection is lost.
func TestRequestsAreRepeated(t *testing.T) {
	for name, answers := range map[string][]http.HandlerFunc{
		"lost":                               {lose, made},
		"lost in the middle":                 {loseInTheMiddle, made},
		"lost on a connection that was used": {made, lose, made},
		"lost thrice":                        {lose, loseInTheMiddle, lose, made},
		"still running":                      {lose, refuse(protocol.KeyInUse), made},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, tries := flaky(t, answers...)
			if name == "lost on a connection that was used" {
				if err := c.JSON(t.Context(), "POST", "/v1/a", nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			var out struct{ X string }
			err := c.JSON(t.Context(), "POST", "/v1/sessions", map[string]int{"b": 1}, &out)
			if err != nil || out.X != "made" {
				t.Errorf("%v, %+v", err, out)
			}
			got := tries()
			if len(got) != len(answers) || len(got[0].key) < 20 || got[0].age != "" {
				t.Errorf("the server got %+v", got)
			}
			if name == "lost on a connection that was used" {
				if got[0].key == got[1].key || got[1].age != "" {
					t.Errorf("another request has the same key: %+v", got)
				}
				got = got[1:]
			}
			for _, again := range got[1:] {
				age, err := strconv.Atoi(again.age)
				if again.key != got[0].key || again.body != `{"b":1}` || err != nil || age < 1 {
					t.Errorf("again: %+v, first %+v", again, got[0])
				}
			}
		})
	}
}

// What must not be repeated, or cannot be, is not.
func TestRequestsAreNotRepeated(t *testing.T) {
	broken := []http.HandlerFunc{lose}
	large := strings.Repeat("x", protocol.MaxKeyed)
	for name, tt := range map[string]struct {
		method, path string
		in           any
		answers      []http.HandlerFunc
		tries        int
		err          string
	}{
		"a tool that runs until its client is gone": {"POST", "/v1/tools/execute_code", nil, broken, 1, "EOF"},
		"what makes nothing":                        {"DELETE", "/v1/sessions/x", nil, broken, 1, "EOF"},
		"a large body":                              {"POST", "/v1/x", large, broken, 1, "EOF"},
		"lost for good":                             {"POST", "/v1/x", nil, broken, 4, "nobody can tell"},
		"a server that started later": {"POST", "/v1/x", nil, []http.HandlerFunc{lose, refuse(protocol.KeyLost)}, 2,
			"it is " + protocol.KeyLost},
		"refused":           {"POST", "/v1/x", nil, []http.HandlerFunc{refuse("NO")}, 1, "it is NO"},
		"refused after all": {"POST", "/v1/x", nil, []http.HandlerFunc{lose, refuse("NO")}, 2, "it is NO"},
		"a page of a proxy": {"POST", "/v1/x", nil, []http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
		}}, 1, "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, tries := flaky(t, tt.answers...)
			err := c.JSON(t.Context(), tt.method, tt.path, tt.in, nil)
			got := tries()
			if err == nil || !strings.Contains(err.Error(), tt.err) || len(got) != tt.tries {
				t.Errorf("%d tries: %v", len(got), err)
			}
			if hasKey := got[0].key != ""; hasKey != makes(tt.method, tt.path) && name != "a large body" {
				t.Errorf("a key: %v", hasKey)
			}
		})
	}
}

// A client that is cancelled repeats nothing.
func TestCancelledRequestsAreNotRepeated(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, tries := flaky(t, func(http.ResponseWriter, *http.Request) {
		cancel()
		panic(http.ErrAbortHandler)
	})
	if err := c.JSON(ctx, "POST", "/v1/x", nil, nil); err == nil || len(tries()) != 1 {
		t.Errorf("%d tries: %v", len(tries()), err)
	}
}
