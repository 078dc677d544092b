package auth

import (
	"errors"
	"testing"
	"time"
)

// A grant ends with its token: revoked, expired, or required since.
func TestGrantEndsWithItsToken(t *testing.T) {
	s := &shelf{}
	d := door(t, Auto, "localhost", s)
	without, err := d.Authenticate(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	anyone := NewGrant(without, "", nil)
	if p, err := d.Renew(t.Context(), anyone); err != nil || p != without {
		t.Fatalf("without a token: %v, %v", p, err)
	}
	token, header := issue(t, s, "ann", false, 0)
	_, short := issue(t, s, "ann", false, time.Minute)
	grants := map[string]Grant{}
	for _, h := range []string{header, short} {
		p, err := d.Authenticate(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		grants[h] = NewGrant(p, h, nil)
		if now, err := d.Renew(t.Context(), grants[h]); err != nil || now != p {
			t.Errorf("%v, want %v: %v", now, p, err)
		}
	}
	if _, err := d.Renew(t.Context(), anyone); !errors.Is(err, ErrEnded) {
		t.Errorf("without a token, when one is required: %v", err)
	}
	d.now = func() time.Time { return time.Now().Add(time.Hour) }
	if _, err := d.Renew(t.Context(), grants[short]); err == nil {
		t.Error("the expired token counts")
	}
	if _, err := d.Renew(t.Context(), grants[header]); err != nil {
		t.Error(err)
	}
	if err := s.RemoveToken(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Renew(t.Context(), grants[header]); err == nil {
		t.Error("the revoked token counts")
	}
	if _, err := d.Renew(t.Context(), Grant{}); err == nil {
		t.Error("nobody is admitted")
	}
	owner := NewGrant(SocketOwner(), "", nil)
	if p, err := d.Renew(t.Context(), owner); err != nil || p != SocketOwner() {
		t.Errorf("the owner of the socket: %v, %v", p, err)
	}
	jwt := NewGrant(Principal{ID: "oidc:x/y", Token: "jwt_x", Expires: d.now().Add(-time.Second)}, "Bearer a.b.c", nil)
	if _, err := d.Renew(t.Context(), jwt); !errors.Is(err, ErrEnded) {
		t.Errorf("an expired JWT: %v", err)
	}
}
