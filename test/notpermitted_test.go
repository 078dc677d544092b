package test

import (
	"strings"
	"testing"
)

// testNotPermitted: where root cannot give files away, the result says so, and what to do; tar unpacks what belongs to
// others all the same.
func testNotPermitted(t *testing.T) {
	s := start(t)
	c := s.connect(older, "", nil)
	r := c.shell("new", "touch f; chown 5:5 f")
	if !strings.Contains(r.All, "In this sandbox programs cannot give files to other users") || !strings.Contains(r.All, "chown: ") {
		t.Errorf("chown: %q", r.All)
	}
	r = c.shell(r.session(), "tar --owner=someone:1234 --group=some:77 -cf a.tar f && tar xf a.tar && echo unpacked")
	if !strings.Contains(r.Text, "unpacked") || strings.Contains(r.All, "cannot give files") {
		t.Errorf("tar: %q", r.All)
	}
}
