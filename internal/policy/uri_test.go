package policy

import (
	"strings"
	"testing"
)

// A rule about a resource is about every spelling of its URI if it denies or asks, and has to match every one if it
// allows.
func TestResourceURIs(t *testing.T) {
	const public = "allow * resource.read docs/file:///public/* / deny * resource.read"
	for _, c := range []struct {
		rules, uri string
		want       Effect
	}{
		{"deny * resource.read docs/file:///private/*", "docs/file:///private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///private", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///private/", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/FILE:///private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:/private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file://localhost/private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:////private//a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///x/../private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///%70rivate/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///x%2f%2e%2e%2fprivate/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///x/%252e%252e/private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", `docs/file:///x\..\private/a`, Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///x?/../private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///x%3f/../../private/a", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///a%00b", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///%2525252525252570rivate", Refuse},
		{"deny * resource.read docs/file:///private/*", "docs/file:///public/a", Allow},
		{"deny * resource.read docs/file:///private/*", "other/file:///private/a", Allow},
		{"deny * resource.read docs/file:///a%20b/*", "docs/file:///a b/c", Refuse},
		{"deny * resource.read docs/FILE:///private/*", "docs/file:///private/a", Refuse},
		{"ask * resource.read docs/https://a.example/x*", "docs/HTTPS://A.example/%78y", Ask},
		{"deny * resource.read sandlot://sessions/*/files/workspace/private/*",
			"sandlot://sessions/s1/files/workspace/x/../private/a", Refuse},
		{"deny * resource.read sandlot://sessions/*/files/workspace/private/*",
			"sandlot://sessions/s1/files/workspace/%70rivate/a", Refuse},
		{public, "docs/file:///public/a", Allow},
		{public, "docs/file:///public/a%20b", Allow},
		{public, "docs/file:///public/../private/a", Refuse},
		{public, "docs/file:///public/%2e%2e/private/a", Refuse},
		{public, "docs/FILE:///public/a", Refuse},
		{"allow * resource.read docs/file:///a%2A / deny * resource.read", "docs/file:///abc", Refuse},
		{"allow * resource.read docs/* / deny * resource.read", "docs/x://a/../../other/y", Allow},
	} {
		rules := compileText(t, strings.Split(c.rules, " / ")...)
		d := rules.Decide(Question{Principal: ann, Operation: ResourceRead, Detail: c.uri})
		if d.Effect != c.want {
			t.Errorf("%s: %s is %s, want %s", c.rules, c.uri, d.Effect, c.want)
		}
	}
}
