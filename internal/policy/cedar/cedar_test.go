package cedar

import (
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
)

// the policies of the guide's example, and some more.
const policies = `
// Everything is permitted, but for what follows.
permit (principal, action, resource);

forbid (principal, action == Action::"shell.execute", resource)
when { context.detail like "curl *" && !(principal in Role::"operator") };

@ask("the repository is everybody's")
permit (principal, action == Action::"shell.execute", resource)
when { context.detail like "git push*" };

forbid (principal, action in Action::"file", resource)
when { context.detail like "/workspace/private*" };

forbid (principal, action == Action::"network.reach", resource)
when { context.host like "*.corp.example" || context.host like "10.1.*" || [22, 25].contains(context.port) };

forbid (principal == Principal::"bob", action, resource) unless { action in Action::"client" };

forbid (principal, action == Action::"mcp.call", resource) when { principal.service };

forbid (principal, action == Action::"session.stop", resource is Session) when { resource.owner == "carl" };
`

func rules(t testing.TB, text string, list ...string) *policy.Rules {
	t.Helper()
	p, err := Parse(text, "sandlot.yaml", 10)
	if err != nil {
		t.Fatal(err)
	}
	var all []policy.Rule
	for _, text := range list {
		r, err := policy.ParseRule(text, "rule")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return policy.Compile(all).With(p)
}

func TestDecide(t *testing.T) {
	ann, bob, carl := auth.User("ann", false), auth.User("bob", false), auth.User("carl", false)
	ci, chief := auth.User("ci", true), auth.User("chief", false)
	chief.Roles = auth.NewRoles(auth.Operator)
	r := rules(t, policies, "allow * shell.execute ls *", "deny * shell.execute shutdown", "ask * code.execute bash")
	for _, c := range []struct {
		who       auth.Principal
		operation policy.Operation
		detail    string
		effect    policy.Effect
		place     string
	}{
		{ann, policy.ShellExecute, "make", policy.Allow, ""},
		{ann, policy.ShellExecute, "ls -l", policy.Allow, "rule"},
		{ann, policy.ShellExecute, "shutdown", policy.Refuse, "rule"},
		{ann, policy.CodeExecute, "bash", policy.Ask, "rule"},
		{ann, policy.ShellExecute, "curl x", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "ls a; A=1 sudo /usr/bin/curl x", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "ls $(c\"ur\"l x)", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "ls && curl${IFS}x", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "sudo curl \"$U\"", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "sudo -u x timeout 5 curl x", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, "curly x", policy.Allow, ""},
		{ann, policy.NetworkReach, "[64:ff9b::10.1.2.3]:80", policy.Refuse, "sandlot.yaml:25:1"},
		{ann, policy.NetworkReach, "[64:ff9b::10.2.2.3]:80", policy.Allow, ""},
		{chief, policy.ShellExecute, "curl x", policy.Allow, ""},
		{ann, policy.ShellExecute, "git push origin", policy.Ask, "sandlot.yaml:18:1"},
		{ann, policy.ShellExecute, "make && git push", policy.Ask, "sandlot.yaml:18:1"},
		{ann, policy.ShellExecute, "git push; curl x", policy.Refuse, "sandlot.yaml:15:1"},
		{ann, policy.ShellExecute, strings.Repeat("x;", policy.MaxDetail), policy.Refuse, "rule"},
		{ann, policy.FileRead, "a/../private/x", policy.Refuse, "sandlot.yaml:22:1"},
		{ann, policy.FileWrite, "/workspace//private/x", policy.Refuse, "sandlot.yaml:22:1"},
		{ann, policy.FileRead, "public", policy.Allow, ""},
		{ann, policy.FileRead, "x\x00", policy.Refuse, ""},
		{ann, policy.NetworkReach, "GIT.corp.example.:443", policy.Refuse, "sandlot.yaml:25:1"},
		{ann, policy.NetworkReach, "git.corp.example", policy.Refuse, "sandlot.yaml:25:1"},
		{ann, policy.NetworkReach, "example.com", policy.Allow, ""},
		{ann, policy.NetworkReach, "[::ffff:1.2.3.4]:22", policy.Refuse, "sandlot.yaml:25:1"},
		{bob, policy.SessionList, "", policy.Refuse, "sandlot.yaml:28:1"},
		{bob, policy.ClientConnect, "", policy.Allow, ""},
		{ci, policy.MCPCall, "a/b", policy.Refuse, "sandlot.yaml:30:1"},
		{auth.OnBehalfOf("user:ci/eve"), policy.MCPCall, "a/b", policy.Refuse, "sandlot.yaml:30:1"},
		{ann, policy.MCPCall, "a/b", policy.Allow, ""},
		{auth.Principal{}, policy.HealthRead, "", policy.Allow, ""},
		{ann, policy.SessionStopAll, "", policy.Refuse, ""}, // what the table refuses, no policy permits
	} {
		d := r.Decide(policy.Question{Principal: c.who, Operation: c.operation, Detail: c.detail})
		place := ""
		if d.Rule != nil {
			place = d.Rule.Place
		}
		if d.Effect != c.effect || place != c.place || (d.Effect == policy.Refuse) != (d.Reason != nil) {
			t.Errorf("%s %s %.40q: %s by %q (%v), want %s by %q", c.who.ID, c.operation, c.detail, d.Effect, place,
				d.Reason, c.effect, c.place)
		}
	}
	stop := policy.Question{Principal: carl, Operation: policy.SessionStop,
		Resource: policy.Resource{Kind: "session", ID: "s", Owner: carl.ID}}
	if d := r.Decide(stop); d.Effect != policy.Refuse {
		t.Errorf("by the owner of the resource: %s", d.Effect)
	}
	if !r.MayAsk(policy.ShellExecute) || r.MayAsk(policy.FileRead) || !r.Elicits() || !r.Any(policy.VolumeList) ||
		!r.UsesDetail(policy.FileRead) || r.UsesDetail(policy.VolumeList) {
		t.Error("it does not say what may be asked, or what depends on details")
	}
}

// Without a policy that permits, everything is refused. What is followed by a decision with the detail waits for it.
func TestDefaultIsNo(t *testing.T) {
	ann := auth.User("ann", false)
	r := rules(t, `permit (principal == Principal::"ann", action in [Action::"client", Action::"shell"], resource)
when { action in Action::"client" || context.simple && context.line like "git *" };`, "allow * *")
	for _, c := range []struct {
		q      policy.Question
		effect policy.Effect
	}{
		{policy.Question{Principal: ann, Operation: policy.ClientConnect}, policy.Allow},
		{policy.Question{Principal: ann, Operation: policy.ShellExecute, Detail: "git commit -m 'a b'"}, policy.Allow},
		{policy.Question{Principal: ann, Operation: policy.ShellExecute, Detail: "git status; rm x"}, policy.Refuse},
		{policy.Question{Principal: ann, Operation: policy.ShellExecute, Detail: "rm x"}, policy.Refuse},
		{policy.Question{Principal: ann, Operation: policy.ShellExecute, DetailFollows: true}, policy.Allow},
		{policy.Question{Principal: ann, Operation: policy.VolumeList}, policy.Refuse},
		{policy.Question{Principal: auth.Local, Operation: policy.ClientConnect}, policy.Refuse},
	} {
		if d := r.Decide(c.q); d.Effect != c.effect {
			t.Errorf("%+v: %s", c.q, d.Effect)
		}
	}
}

// Policies are compared with every spelling of a URI: forbid with any, permit with all.
func TestSpellings(t *testing.T) {
	r := rules(t, `permit (principal, action, resource) when { context.detail like "docs/file:///public/*" };
forbid (principal, action, resource) when { context.detail like "docs/file:///public/secret*" };`)
	for uri, effect := range map[string]policy.Effect{"docs/file:///public/a": policy.Allow,
		"docs/file:///public/%2e%2e/a": policy.Refuse, "docs/file:///public/%73ecret": policy.Refuse,
		"docs/file:///public/x/../secret": policy.Refuse} {
		d := r.Decide(policy.Question{Principal: auth.Local, Operation: policy.ResourceRead, Detail: uri})
		if d.Effect != effect {
			t.Errorf("%s: %s", uri, d.Effect)
		}
	}
}

// A line that would take long is refused, and one with the same command many times is not.
func TestLongLines(t *testing.T) {
	var text strings.Builder
	text.WriteString("permit (principal, action, resource);")
	for n := range 2000 {
		fmt.Fprintf(&text, "forbid (principal, action, resource) when { context.detail like \"*a%d*b*c*\" };", n)
	}
	r, many := rules(t, text.String()), ""
	for n := range 900 {
		many += fmt.Sprintf("c%d x;", n)
	}
	ask := func(line string) policy.Decision {
		return r.Decide(policy.Question{Principal: auth.Local, Operation: policy.ShellExecute, Detail: line})
	}
	if d := ask(many); d.Effect != policy.Refuse || !strings.Contains(d.Reason.Error(), "too many commands") {
		t.Errorf("%s, %v", d.Effect, d.Reason)
	}
	if d := ask(strings.Repeat("ls;", 2000)); d.Effect != policy.Allow {
		t.Errorf("the same command 2,000 times: %s, %v", d.Effect, d.Reason)
	}
	if d := ask("ls | b9c; a9bc"); d.Effect != policy.Refuse || d.Rule == nil {
		t.Errorf("a short line: %s", d.Effect)
	}
}

// A policy that cannot be evaluated refuses, as it might forbid.
func TestErrorsRefuse(t *testing.T) {
	r := rules(t, `permit (principal, action, resource); forbid (principal, action, resource)
when { context.port + 9223372036854775807 + 1 > 0 };`)
	d := r.Decide(policy.Question{Principal: auth.Local, Operation: policy.VolumeList})
	if d.Effect != policy.Refuse || d.Rule == nil || !strings.Contains(d.Reason.Error(), "cannot be evaluated") {
		t.Errorf("%s, %v", d.Effect, d.Reason)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		`permit (principal, action, resource)`: "sandlot.yaml:10: cedar",
		"\n\npermit (principal, action == Action::\"shell.exec\", resource);": "sandlot.yaml:13: cedar: there is no " +
			`operation "shell.exec"`,
		`permit (principal, action == Action::"shell", resource);`:       "action in Action::\"shell\"",
		`permit (principal, action == Op::"shell.execute", resource);`:   "no type Op for actions",
		`permit (principal == User::"ann", action, resource);`:           "no type User for principals",
		`permit (principal == Principal::"user:ann", action, resource);`: `is written Principal::"ann"`,
		`permit (principal == Principal::"a b", action, resource);`:      "must be local",
		`permit (principal in Role::"root", action, resource);`:          `role "root"`,
		`permit (principal is User, action, resource);`:                  "a principal is no User",
		`permit (principal, action, resource is File);`:                  "no type File for resources",
		`@ask("x") forbid (principal, action, resource);`:                "@ask stands before permit only",
		`@aks("x") permit (principal, action, resource);`:                "no annotation @aks",
		`permit (principal, action in [], resource);`:                    "an empty list",
		"permit (principal, action, resource)\nwhen { action in [] };":   "sandlot.yaml:12: cedar: an empty list",
		"\n// nothing\n": "sandlot.yaml:10: cedar has no policy",
		"permit (principal, action, resource) when {\n context.detail like \"x\" &&\n// principal.servise\n" +
			" principal.servise };": `sandlot.yaml:14: cedar: principal has no attribute "servise" (there are ` +
			`authenticated, service); did you mean "service"?`,
		`permit (principal, action, resource) unless { context has detial };`: `context has no attribute "detial"`,
		"permit (principal, action, resource)\nwhen {\n action == Action::\"shell.exceute\" };": "" +
			`sandlot.yaml:13: cedar: ` +
			`there is no operation "shell.exceute"; did you mean "shell.execute"?`,
	} {
		if _, err := Parse(text, "sandlot.yaml", 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Names and types in conditions are checked too.
func TestConditions(t *testing.T) {
	for condition, want := range map[string]string{
		`context.detial like "x"`:                     `context has no attribute "detial"`,
		`resource["ownr"] == "ann"`:                   `resource has no attribute "ownr"`,
		`action.name == "x"`:                          `action has no attributes`,
		`principal.service.x`:                         `service has no attributes`,
		`Principal::"ann".service`:                    `attributes of Principal::"ann" are`,
		`resource is Sesion`:                          "no type Sesion for resources",
		`resource == Sesion::"x"`:                     "no type Sesion for resources",
		`principal == Role::"operator"`:               `principal in Role::"operator"`,
		`principal in Role::"oprator"`:                `role "oprator"`,
		`[Principal::"user:ann"].contains(principal)`: `is written Principal::"ann"`,
		`resource.owner == "user:ann"`:                `is written Principal::"ann"`,
		`action == Action::"shell"`:                   "write `action in",
		`action in [Action::"shell", Action::"fil"]`:  `no operation "fil"`,
		`principal.hasTag("x")`:                       "nothing has tags",
		`context.port == "22"`:                        `context.port is a number, and never equal to "22"`,
		`context.detail`:                              "expected Bool",
		`resource in Server::"x"`:                     `is Server::""`,
		`["22"].contains(context.port)`:               "context.port is a number",
		`principal.service == "true"`:                 "principal.service is true or false",
		`context.port like "2*"`:                      "expected String",
		`context.detail < 3`:                          "expected datetime",
	} {
		text := "permit (principal, action, resource) when { " + condition + " };"
		if _, err := Parse(text, "sandlot.yaml", 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, condition := range []string{`context.detail like "x" && [22, 443].contains(context.port)`,
		`principal in [Role::"operator", Principal::"gitu"] || principal is Principal`, `resource == Server::""`,
		`resource is Session && resource.owner == "gitu/ann"`, `resource has owner && context has host`,
		`if action in Action::"file" then resource in Session::"x" else action == Action::"mcp.call"`,
		`resource == Quota::"ann" || resource in [Connection::"a b", Secret::"KEY"]`, `resource.owner == ""`,
		`[Action::"file.read", Action::"file.write"].contains(action)`} {
		text := "permit (principal, action, resource) when { " + condition + " };"
		if _, err := Parse(text, "sandlot.yaml", 10); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	var text strings.Builder
	text.WriteString("permit (principal, action, resource);\n")
	for n := range 100 {
		fmt.Fprintf(&text, "forbid (principal, action == Action::\"shell.execute\", resource) "+
			"when { context.detail like \"tool%d *\" };\n", n)
	}
	r := rules(b, text.String())
	q := policy.Question{Principal: auth.Local, Operation: policy.ShellExecute, Detail: "make test"}
	for b.Loop() {
		if r.Decide(q).Effect != policy.Allow {
			b.Fatal("it is refused")
		}
	}
}

// BenchmarkLongLine decides about lines of the longest kind with 100 policies.
func BenchmarkLongLine(b *testing.B) {
	var text strings.Builder
	text.WriteString("permit (principal, action, resource);\n")
	for n := range 100 {
		fmt.Fprintf(&text, "forbid (principal, action == Action::\"shell.execute\", resource) "+
			"when { context.detail like \"tool%d *\" && !(principal in Role::\"operator\") };\n", n)
	}
	r := rules(b, text.String())
	many, same, words := "", "", strings.Repeat("word ", policy.MaxDetail/5)
	for n := range 500 {
		many += fmt.Sprintf("command%d x;", n)
	}
	for len(same) < policy.MaxDetail-16 {
		same += "ls /tmp;"
	}
	for name, line := range map[string]string{"many": many, "same": same, "words": words} {
		q := policy.Question{Principal: auth.Local, Operation: policy.ShellExecute, Detail: line}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r.Decide(q).Effect != policy.Allow {
					b.Fatal("it is refused")
				}
			}
		})
	}
}
