package hub

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// Bounds of the results that the server keeps, in memory alone. With too many, the oldest of the one goes who has too much.
const (
	maxResults      = 20       // of a session
	maxResultText   = 64 << 10 // bytes of one text
	maxResultInput  = 8 << 10  // bytes of the code or command
	maxResultBlocks = 32       // of a result
	maxSessionBytes = 8 << 20
	maxOwnerBytes   = 24 << 20
	maxResultBytes  = 96 << 20 // of all principals
)

// ResultBlock is one part of a result: a text, or an image.
type ResultBlock struct {
	Type      string `json:"type" jsonschema:"text or image."`
	Text      string `json:"text,omitempty"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"Whether more of it came than is kept."`
	MIME      string `json:"mime,omitempty" jsonschema:"Of an image, or of a text that is not plain."`
	Data      []byte `json:"data,omitempty" jsonschema:"The image in base64."`
}

// SessionResult is the result of a call that ran code or a command in a session.
type SessionResult struct {
	ID      int64         `json:"id" jsonschema:"Greater than the ones of the results before."`
	Time    time.Time     `json:"time"`
	Tool    string        `json:"tool"`
	Input   string        `json:"input,omitempty" jsonschema:"The code or command, or its beginning."`
	Failed  bool          `json:"failed,omitempty"`
	Content []ResultBlock `json:"content"`
	// Left is how many blocks of the result were not kept.
	Left int `json:"left,omitempty" jsonschema:"Parts that are not kept."`
}

func (r *SessionResult) size() (n int) {
	for _, b := range r.Content {
		n += len(b.Text) + len(b.Data)
	}
	return n + len(r.Input) + 512
}

// results are the last results of sessions.
type results struct {
	mu     sync.Mutex
	newest int64
	all    []keptResult // the oldest first
}

type keptResult struct {
	owner, session string
	bytes          int
	SessionResult
}

// keepResult keeps the result of a call that ran code or a command.
func (h *Hub) keepResult(o policy.Operation, c tool.Call, res *tool.Result) {
	if o != policy.CodeExecute && o != policy.ShellExecute || res == nil || res.Session == "" || res.Replayed ||
		res.Raw != nil {
		return
	}
	var input struct{ Code, Command any }
	_ = json.Unmarshal(c.Args, &input) // the tool has read them
	r := SessionResult{Time: time.Now().UTC(), Tool: c.Name, Failed: res.IsError, Content: []ResultBlock{},
		Input: cut(inputText(input.Code)+inputText(input.Command), maxResultInput)}
	for _, b := range res.Content {
		if len(r.Content) == maxResultBlocks || !r.add(b) {
			r.Left++
		}
	}
	kept := keptResult{owner: c.Principal.ID, session: res.Session, SessionResult: r}
	kept.bytes = r.size()
	h.results.add(kept, h.livesStill)
}

func (h *Hub) livesStill(k keptResult) bool {
	return h.Sessions == nil || h.Sessions.Has(k.owner, k.session)
}

// afterSuccess forgets the results of sessions that a request has ended. A home that has ended is there still.
func (h *Hub) afterSuccess(r Request) {
	if r.Operation != policy.SessionStop && r.Operation != policy.SessionStopAll {
		return
	}
	ended, _ := h.Sessions.Find(r.Principal, r.Resource.ID) // if not, it lives no more
	h.results.prune(func(k keptResult) bool {
		return h.livesStill(k) && r.Operation == policy.SessionStop && (k.owner != r.Principal.ID || k.session != ended)
	})
}

func (s *results) prune(lives func(keptResult) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(k keptResult) bool { return !lives(k) })
}

// inputText returns the text of an argument that is a text, or a list of words.
func inputText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		words := make([]string, 0, len(v))
		for _, w := range v {
			s, _ := w.(string)
			words = append(words, s)
		}
		return strings.Join(words, " ")
	}
	return ""
}

// cut returns the beginning of a text, without a part of a character at its end. It holds no more memory than that.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:most], ""))
}

func (r *SessionResult) add(c tool.Content) bool {
	b := ResultBlock{Type: "text"}
	switch {
	case c.Text != nil:
		b.Text = *c.Text
	case c.Resource != nil:
		b.Text, b.MIME = c.Resource.Text, c.Resource.MIME
	case c.Image != nil && len(c.Image.Data) <= maxSessionBytes/2:
		b = ResultBlock{Type: "image", MIME: c.Image.MIME, Data: c.Image.Data}
	default:
		return false
	}
	b.Truncated = len(b.Text) > maxResultText
	b.Text = cut(b.Text, maxResultText)
	r.Content = append(r.Content, b)
	return true
}

// add keeps a result, and forgets others: those of sessions that do not live any more, and what is too much.
func (s *results) add(k keptResult, lives func(keptResult) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest++
	k.ID = s.newest
	s.all = slices.DeleteFunc(append(s.all, k), func(k keptResult) bool { return !lives(k) })
	for {
		bytes, most := map[string]int{}, ""
		count, ofSession, total := 0, 0, 0
		for _, o := range s.all {
			total += o.bytes
			if bytes[o.owner] += o.bytes; most == "" || bytes[o.owner] > bytes[most] {
				most = o.owner
			}
			if o.owner == k.owner && o.session == k.session {
				count, ofSession = count+1, ofSession+o.bytes
			}
		}
		var tooMuch func(keptResult) bool
		switch {
		case count > maxResults, ofSession > maxSessionBytes && count > 1:
			tooMuch = func(o keptResult) bool { return o.owner == k.owner && o.session == k.session }
		case bytes[k.owner] > maxOwnerBytes:
			tooMuch = func(o keptResult) bool { return o.owner == k.owner }
		case total > maxResultBytes:
			tooMuch = func(o keptResult) bool { return o.owner == most }
		default:
			return
		}
		i := slices.IndexFunc(s.all, tooMuch)
		s.all = slices.Delete(s.all, i, i+1)
	}
}

// of returns the results of a session that came after one.
func (s *results) of(owner, session string, after int64) []SessionResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []SessionResult{}
	for _, k := range s.all {
		if k.owner == owner && k.session == session && k.ID > after {
			list = append(list, k.SessionResult)
		}
	}
	return list
}

// ResultsQuery asks for the last results of a session, after the one with that id.
type ResultsQuery struct {
	SessionID
	After int64
}

// SessionResults is the last results of a session.
type SessionResults struct {
	Results []SessionResult `json:"results"`
}

// listResults wakes no session.
func (h *Hub) listResults(_ context.Context, p auth.Principal, q ResultsQuery) (SessionResults, error) {
	id, err := h.Sessions.Find(p, string(q.SessionID))
	if err != nil {
		return SessionResults{}, err
	}
	return SessionResults{h.results.of(p.ID, id, q.After)}, nil
}
