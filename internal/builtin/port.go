package builtin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/port"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// ExposeInput are the arguments of expose_port.
type ExposeInput struct {
	Port int `json:"port"`
	SessionInput
	Public    bool     `json:"public,omitempty"`
	ExpiresIn int64    `json:"expires_in,omitempty" jsonschema:"Seconds until the link ends."`
	Wait      *float64 `json:"wait,omitempty"`
}

// detail implements detailed.
func (in ExposeInput) detail() string { return strconv.Itoa(in.Port) }

// listenTime is how long expose_port waits until something listens.
const listenTime = 10 * time.Second

// Exposed is the result of expose_port.
type Exposed struct {
	SessionOutput
	URL       string `json:"url" jsonschema:"The link to give to the user."`
	PathURL   string `json:"path_url"`
	Port      int    `json:"port" jsonschema:"The port."`
	Public    bool   `json:"public" jsonschema:"Whether no token is needed."`
	Expires   string `json:"expires_at" jsonschema:"When the link ends, RFC 3339."`
	Listening bool   `json:"listening" jsonschema:"Whether something listens on the port now."`
}

func (t *Tools) exposePort(ctx context.Context, c tool.Call, in ExposeInput) (*tool.Result, error) {
	c.NewSession = false
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	number, wait := in.Port, listenTime
	if in.Wait != nil {
		wait = time.Duration(*in.Wait * float64(time.Second))
	}
	listening, err := awaitPort(ctx, l, number, wait)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.Connection)
	}
	t.Sessions.Narrow(l.ID(), c.Principal.Scope) // whoever has the link speaks to the session's programs
	lifetime := cmp.Or(time.Duration(in.ExpiresIn)*time.Second, port.DefaultLifetime)
	record, token, err := t.Ports.Expose(ctx, c.Principal.ID, l.ID(), number, in.Public, lifetime)
	if err != nil {
		return nil, err
	}
	if record.Public {
		token = ""
	}
	links := t.Ports.Links
	fields := &Exposed{SessionOutput: sessionOutput(l), URL: links.URL(l.ID(), number, token),
		PathURL: links.PathURL(l.ID(), number, token), Port: number,
		Public: record.Public, Expires: formatTime(record.Expires), Listening: listening}
	text := fmt.Sprintf("Port %d is at %s until %s.", number, fields.URL, fields.Expires)
	if record.Public {
		text += " It is public: no token is needed."
	}
	if !listening {
		text += fmt.Sprintf(" Nothing listens on port %d yet; the link works as soon as something does.", number)
	}
	if t.Ports.Offline() {
		text += fmt.Sprintf(" This server has no address on the network, so the link works once `sandlot serve` runs "+
			"in its place; `sandlot forward %s %d` works now.", l.ID(), number)
	}
	r := sessionResult(l, fields, tool.Text(text))
	r.Summary = summary(l, "path_url: "+fields.PathURL)
	return r, nil
}

// ClosePortInput are the arguments of close_port.
type ClosePortInput struct {
	Port int `json:"port"`
	SessionInput
}

// detail implements detailed.
func (in ClosePortInput) detail() string { return strconv.Itoa(in.Port) }

// target implements targeted.
func (in ClosePortInput) target(_ *Tools, _ tool.Call, d *tool.Detail) {
	d.Session = cmp.Or(in.SessionID, "home")
}

// Closed is the result of close_port.
type Closed struct {
	Success   bool   `json:"success" jsonschema:"False when that port is not exposed."`
	Port      int    `json:"port" jsonschema:"The port."`
	SessionID string `json:"session_id" jsonschema:"The session."`
	Warnings
}

func (t *Tools) closePort(ctx context.Context, c tool.Call, in ClosePortInput) (*tool.Result, error) {
	id, err := t.Sessions.Find(c.Principal, in.SessionID)
	if err != nil && cmp.Or(in.SessionID, "home") == "home" { // nothing has used it yet
		return inSession("home", &Closed{Port: in.Port, SessionID: "home"},
			fmt.Sprintf("Port %d of session home is not exposed", in.Port))
	}
	if err != nil {
		return nil, err
	}
	ok, err := t.Ports.Close(ctx, c.Principal.ID, id, in.Port)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Port %d of session %s is closed", in.Port, id)
	if !ok {
		text = fmt.Sprintf("Port %d of session %s is not exposed", in.Port, id)
	}
	r := textResult(&Closed{Success: ok, Port: in.Port, SessionID: id}, text)
	r.Session = id
	return r, nil
}

// Port is an exposed port of a session in the results for its owner.
type Port struct {
	Port    int    `json:"port"`
	Public  bool   `json:"public"`
	URL     string `json:"url"` // without the token
	PathURL string `json:"path_url"`
	Created string `json:"created_at"`
	Expires string `json:"expires_at"`
}

func (t *Tools) ports(owner, id string) []Port {
	rows := []Port{}
	for _, r := range t.Ports.List(owner, id) {
		rows = append(rows, Port{Port: r.Port, Public: r.Public, URL: t.Ports.Links.URL(id, r.Port, ""),
			PathURL: t.Ports.Links.PathURL(id, r.Port, ""), Created: formatTime(r.Created),
			Expires: formatTime(r.Expires)})
	}
	return rows
}
