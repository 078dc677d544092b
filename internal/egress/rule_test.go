package egress

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	for in, want := range map[string]string{
		"api.example.com":        "api.example.com",
		"API.Example.COM.:443":   "api.example.com:443",
		"*.example.com:8443":     "*.example.com:8443",
		"*.corp":                 "*.corp",
		"localhost:4873":         "localhost:4873",
		"_a.example.com":         "_a.example.com",
		"203.0.113.7":            "203.0.113.7",
		"203.0.113.7:22":         "203.0.113.7:22",
		"203.0.113.7/32":         "203.0.113.7",
		"203.0.113.0/24":         "203.0.113.0/24",
		"203.0.113.0/24:22":      "203.0.113.0/24:22",
		"2001:db8::1":            "2001:db8::1",
		"[2001:db8::1]":          "2001:db8::1",
		"[2001:DB8:0::1]:443":    "[2001:db8::1]:443",
		"2001:db8::/32":          "2001:db8::/32",
		"[2001:db8::/32]:443":    "[2001:db8::/32]:443",
		"::ffff:203.0.113.7":     "203.0.113.7",
		"xn--bcher-kva.example":  "xn--bcher-kva.example",
		"0x7f.1.example":         "0x7f.1.example",
		"[::ffff:203.0.113.7]:1": "203.0.113.7:1",
	} {
		r, err := ParseRule(in)
		if err != nil || r.String() != want {
			t.Errorf("%q: %q, %v; want %q", in, r, err, want)
			continue
		}
		if again, err := ParseRule(r.String()); again != r || err != nil {
			t.Errorf("%q does not come back: %v, %v", in, again, err)
		}
	}
}

func TestParseRuleRefuses(t *testing.T) {
	for _, in := range []string{
		"", ".", "*", "*.", "*.*.example.com", "a*.example.com", "example.*", "*example.com", "*.203.0.113.7",
		"*.[::1]",
		"https://example.com", "example.com/path", "example.com:443/x", "user@example.com",
		" example.com", "example.com ", "exa mple.com", "example.com\n", "ex\x00ample.com", "bücher.example",
		"example。com",
		"example.com:", "example.com:0", "example.com:65536", "example.com:-1", "example.com:+1", "example.com:http",
		"example.com:0443", "example.com:1:2",
		"..", "a..example.com", ".example.com", "-a.example.com", "a-.example.com",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com",
		"127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "1.2.3.4.5", "1.2.3.256", "1.2.3.04", "example.1",
		"example.0x",
		"203.0.113.7/24", "203.0.113.0/33", "203.0.113.0/-1", "203.0.113.0/24/8", "example.com/24",
		"::ffff:203.0.113.0/120",
		"fe80::1%eth0", "[fe80::1%1]:443", "[2001:db8::1", "2001:db8::1]", "[2001:db8::1]443", "[example.com]:443",
		"[203.0.113.7]:22", "[]", "[]:1",
	} {
		if r, err := ParseRule(in); err == nil {
			t.Errorf("%q is a rule: %v", in, r)
		} else if !strings.Contains(err.Error(), "*.example.com") {
			t.Errorf("%q: the error does not say what a rule is: %v", in, err)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"api.example.com:443", "*.example.com", "[2001:db8::1]:443", "203.0.113.0/24:1", "127.1",
		"a:b:c", "[::]/0:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			for _, c := range []byte(err.Error()) {
				if c < ' ' || c > '~' {
					t.Fatalf("%q: the error is not printable: %q", s, err)
				}
			}
			return
		}
		if again, err := ParseRule(r.String()); err != nil || again != r {
			t.Fatalf("%q is %q, which is %q, %v", s, r, again, err)
		}
	})
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"api.example.com.", "0x7f.1", "::1", "1.2.3.4", "a%b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, addr, err := parseHost(s)
		if err == nil && (name == "") != addr.IsValid() {
			t.Fatalf("%q is %q and %v", s, name, addr)
		}
		if again, _, err := parseHost(name); name != "" && (err != nil || again != name) {
			t.Fatalf("%q is %q, which is %q, %v", s, name, again, err)
		}
	})
}

func rules(t testing.TB, list ...string) []Rule {
	t.Helper()
	var out []Rule
	for _, s := range list {
		r, err := ParseRule(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		rule, host string
		port       uint16
		want       bool
	}{
		{"example.com", "example.com", 80, true},
		{"example.com:443", "example.com", 443, true},
		{"example.com:443", "example.com", 80, false},
		{"example.com:443", "example.com", 0, true},
		{"example.com", "a.example.com", 80, false},
		{"example.com", "badexample.com", 80, false},
		{"*.example.com", "example.com", 80, false},
		{"*.example.com", "a.b.example.com", 80, true},
		{"*.example.com", "badexample.com", 80, false},
		{"*.example.com", "example.com.evil.example", 80, false},
		{"20.0.0.0/24", "20.0.0.255", 80, true},
		{"20.0.0.0/24", "20.0.1.0", 80, false},
		{"20.0.0.0/24", "x.example.com", 80, false},
		{"0.0.0.0/0", "2a00::1", 80, false},
		{"[2a00::/16]:80", "2a00::1", 80, true},
	} {
		name, addr, err := parseHost(c.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := rules(t, c.rule)[0].matches(Target{name, addr, c.port}); got != c.want {
			t.Errorf("%s covers %s:%d: %v", c.rule, c.host, c.port, got)
		}
	}
	if (Rule{}).matches(Target{Name: "example.com", Port: 1}) || (Rule{}).
		matches(Target{Addr: netip.MustParseAddr("20.0.0.1"), Port: 1}) {
		t.Error("an empty rule covers something")
	}
}

func TestPolicyJSON(t *testing.T) {
	in := `{"mode":"allowlist","allow":["api.example.com:443","*.example.org"],"allow_private":[{"host":"mirror.example","cidr":"10.0.0.0/8"}],"registries":["localhost:4873"]}`
	var p Policy
	if err := json.Unmarshal([]byte(in), &p); err != nil {
		t.Fatal(err)
	}
	if out, err := json.Marshal(p); err != nil || string(out) != in {
		t.Errorf("%s, %v", out, err)
	}
	if json.Unmarshal([]byte(`{"allow":["*"]}`), &p) == nil {
		t.Error("* is a rule in JSON")
	}
}
