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
		"": "deny", "mcp_consent: allow": "allow",
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

func TestWarningsOfRules(t *testing.T) {
	c, err := load(t, "policy:\n  rules:\n    - deny service network.*\n    - deny ann network.*\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := RuleWarnings(c); len(got) != 1 || !strings.Contains(got[0], "sandlot.yaml:3: deny service network.*") {
		t.Errorf("%q", got)
	}
}
