package oauth

import (
	"context"
	"net/url"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
)

var ann = auth.User("ann", false)

// What comes back is taken once, however soon it comes again.
func TestStateIsGoodOnce(t *testing.T) {
	all := New(Config{Callback: "http://localhost:1/oauth/callback"})
	p := &newRequest{server: Server{Owner: ann, Name: "x"}, id: secret.ID(), state: "s",
		loginURL: &url.URL{Scheme: "https", Host: "login.example"}, result: make(chan *sdk.AuthorizationResult, 2)}
	if all.addRequest(p) != nil || all.addRequest(&newRequest{server: p.server, id: secret.ID(),
		state: "s"}) == nil || all.addRequest(&newRequest{server: p.server, id: secret.ID()}) == nil {
		t.Error("a state is none, or that of two")
	}
	i, err := all.ConsentPage(p.id, nil)
	if err != nil {
		t.Fatal(err)
	}
	mine := func(string) []string { return []string{i.Browser} }
	q := url.Values{"state": {"s"}, "code": {"c"}}
	if _, err := all.HandleCallback(q, mine); err != ErrOtherBrowser { // it has not gone on
		t.Errorf("before it began: %v", err)
	}
	if _, err := all.Redirect(p.id, mine(""), i.Proof); err != nil {
		t.Fatal(err)
	}
	if _, err := all.HandleCallback(q, mine); err != nil {
		t.Fatal(err)
	}
	if _, err := all.HandleCallback(q, mine); err != ErrNotWaiting || len(p.result) != 1 {
		t.Errorf("the second time: %v; taken %d times", err, len(p.result))
	}
	if _, err := all.Redirect(p.id, mine(""), i.Proof); err != ErrNotWaiting {
		t.Errorf("begun again: %v", err)
	}
}

// Who opens the link sees whose it is, and what may be secret in an address does
// not show.
func TestConsentPage(t *testing.T) {
	const odd = `<script>alert("1")</script>`
	all := New(Config{Callback: "http://localhost:1/oauth/callback"})
	put := func(name, address string, configured bool) string {
		a := all.Account(Server{Owner: auth.Principal{ID: "user:x", Name: odd}, Name: name, Configured: configured},
			nil)
		p, err := (&Login{account: a, address: address}).newRequest(&attempt{},
			"https://login.example/authorize?state="+secret.ID())
		if err == nil {
			err = all.addRequest(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p.id
	}
	own, err := all.ConsentPage(put("mine", "https://bank.example/a/mcp?key=hunter2", false), nil)
	if err != nil || own.User != odd || own.Server != "mine" || own.Address != "https://bank.example/a/mcp" ||
		own.Host != "login.example" || own.Operator {
		t.Errorf("%+v, %v", own, err)
	}
	theirs, err := all.ConsentPage(put("theirs", "https://bank.example/hunter2/mcp?key=hunter2", true), nil)
	if err != nil || theirs.Address != "https://bank.example" || !theirs.Operator {
		t.Errorf("%+v, %v", theirs, err)
	}
}

// A server's own address is shown whole, in ASCII, or not at all.
func TestShownAddress(t *testing.T) {
	if _, err := shownAddress("https://"+strings.Repeat("a", 300)+".test/mcp", false); err == nil {
		t.Error("a server's own address is shown in part")
	}
	if got, err := shownAddress("https://b\u00fccher.example/mcp?k=v",
		false); err != nil || got != "https://xn--bcher-kva.example/mcp" {
		t.Errorf("%q, %v", got, err)
	}
}

// deaf is a server that is another one by now.
type deaf struct{}

func (deaf) LoginNeeded(context.Context, *Login, string) bool { return false }
func (deaf) LoginEnded(*Login, string, error)                 {}

// A log-in that was given up asks nobody, however far it had come.
func TestAskAfterItsEnd(t *testing.T) {
	all := New(Config{Callback: "http://localhost:1/oauth/callback"})
	l := &Login{account: all.Account(Server{Owner: ann, Name: "x"}, deaf{}), address: "https://bank.example/mcp"}
	a := &attempt{linkReady: make(chan struct{})}
	_, err := l.fetchCode(context.WithValue(t.Context(), attemptKey{}, a),
		&sdk.AuthorizationArgs{URL: "https://accounts.example.com/authorize?state=x"})
	if err == nil || err.Error() != "it was cancelled" || len(all.WaitingOwners()) != 0 || l.prompts != 0 {
		t.Errorf("%v; %v wait", err, all.WaitingOwners())
	}
	select {
	case <-a.linkReady:
		t.Error("its user is asked")
	default:
	}
}

// The issuer that answers a log-in is the one of the metadata (RFC 9207).
func TestIssuerOfAnswers(t *testing.T) {
	const issuer = "https://as.example"
	for _, c := range []struct {
		named endpoints
		iss   string
		good  bool
	}{
		{endpoints{Issuer: issuer, ReturnsIssuer: true}, issuer, true},
		{endpoints{Issuer: issuer, ReturnsIssuer: true}, "", false},
		{endpoints{Issuer: issuer, ReturnsIssuer: true}, "https://evil.test", false},
		{endpoints{Issuer: issuer}, "", true},
		{endpoints{Issuer: issuer}, issuer, false},
		{endpoints{Issuer: issuer}, "https://evil.test", false},
		{endpoints{}, "", true},
		{endpoints{}, issuer, false},
	} {
		if err := (&metadata{endpoints: c.named}).checkIssuer(c.iss); (err == nil) != c.good {
			t.Errorf("%+v, %q: %v", c.named, c.iss, err)
		}
	}
}
