package app

import (
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
)

// What holds for services holds for the users whom they name.
func TestRulesOfServices(t *testing.T) {
	of, _ := auth.FromID("user:gitu/ann")
	for settings, want := range map[string]string{
		"": "allow", "mcp_consent: allow": "allow", "mcp_consent: ask": "ask",
		"policy: {rules: ['allow service mcp.install']}":     "allow",
		"policy: {rules: ['deny service *', 'allow * *']}":   "deny",
		"policy: {rules: ['ask gitu mcp.*', 'allow * *']}":   "ask",
		"policy: {rules: ['deny user *', 'allow * *']}":      "allow",
		"policy: {rules: ['deny gitu/bob *', 'allow * *']}":  "allow",
		"policy: {rules: ['deny gitu/ann *', 'allow * *']}":  "deny",
		"policy: {rules: ['deny gitux mcp.*', 'allow * *']}": "allow",
	} {
		c, err := load(t, settings, nil)
		if err != nil {
			t.Fatal(err)
		}
		v, err := CheckPolicy(c, policy.Question{Principal: of, Operation: policy.MCPInstall, Detail: "x npm:x"})
		if err != nil || v.Effect != want {
			t.Errorf("%q: %+v, %v; want %s", settings, v, err, want)
		}
	}
}

// A built-in default denies to a service what its users would share, says that it is one, and which rule opens it: that
// rule does.
func TestDefaultsForServices(t *testing.T) {
	service, _ := auth.FromID("user:gitu")
	service.Service = true
	user, _ := auth.FromID("user:gitu/ann")
	for _, tt := range []struct {
		q     policy.Question
		opens string // empty: it is allowed
	}{
		{policy.Question{Principal: service, Operation: policy.MCPInstall, Detail: "x npm:x"}, "allow gitu mcp.install"},
		{policy.Question{Principal: service, Operation: policy.MCPConnect, Detail: "x true"}, "allow gitu mcp.connect"},
		{policy.Question{Principal: service, Operation: policy.SecretUse, Detail: "KEY"}, "allow gitu secret.use KEY"},
		{policy.Question{Principal: user, Operation: policy.SecretUse, Detail: "KEY"}, "allow gitu secret.use KEY"},
		{policy.Question{Principal: user, Operation: policy.MCPInstall, Detail: "x npm:x"}, ""},
		{policy.Question{Principal: user, Operation: policy.MCPConnect, Detail: "x true"}, ""},
	} {
		decide := func(settings string) policy.Decision {
			c, err := load(t, settings, nil)
			if err != nil {
				t.Fatal(err)
			}
			rules, err := compileRules(c)
			if err != nil {
				t.Fatal(err)
			}
			return rules.Decide(tt.q)
		}
		d := decide("")
		if tt.opens == "" {
			if d.Effect != policy.Allow {
				t.Errorf("%s of %s: %v", tt.q.Operation, tt.q.Principal.ID, d.Err())
			}
			continue
		}
		text := ""
		if d.Reason != nil {
			text = d.Reason.Text()
		}
		if !strings.Contains(text, "built-in default") || !strings.Contains(text, "sandlot.yaml") ||
			!strings.HasSuffix(text, "- "+tt.opens) {
			t.Errorf("%s of %s: %v %q", tt.q.Operation, tt.q.Principal.ID, d.Effect, text)
		}
		if d := decide("policy: {rules: ['" + tt.opens + "']}"); d.Effect != policy.Allow {
			t.Errorf("%s does not open it: %v", tt.opens, d.Err())
		}
		if d := decide("policy: {rules: ['deny gitu *']}"); d.Effect != policy.Refuse ||
			strings.Contains(d.Reason.Text(), "default") {
			t.Errorf("a rule of the operator: %v", d.Err())
		}
	}
}

func TestWarningsOfRules(t *testing.T) {
	c, err := load(t, "policy:\n  rules:\n    - deny service network.*\n    - deny ann network.*\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := RuleWarnings(c); len(got) != 1 || !strings.Contains(got[0], "sandlot.yaml:3: deny service network.*") {
		t.Errorf("%q", got)
	}
}
