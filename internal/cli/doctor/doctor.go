// Package doctor checks that sandboxes work on this machine.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/builtin"
	"sandlot/internal/checkup"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/platform"
	"sandlot/internal/sandbox"
)

// Check is the result of one check.
type Check = checkup.Check

// Mark returns the word before a check's line.
func Mark(c Check) string {
	switch {
	case !c.OK:
		return "FAIL"
	case c.Note:
		return "-"
	}
	return "ok"
}

// Report is the JSON of the command.
type Report struct {
	OK       bool      `json:"ok"`
	Checks   []Check   `json:"checks"`
	Runtimes []Runtime `json:"runtimes,omitempty"` // with --all
}

// A Starter starts a temporary server with that log. done stops it and removes its files.
type Starter func(ctx context.Context, log *slog.Logger) (c *client.Client, done func() error, err error)

type examination struct {
	config *config.Config
	start  Starter
	causes causes // why requests to the temporary server failed
	tell   func(Check)
}

// warning begins the detail of a check that is about a warning alone.
const warning = "WARNING: "

// report tells the result of a check. A warning is a note.
func (e *examination) report(ok bool, what, detail string) {
	e.tellOf(Check{Name: what, OK: ok, Note: ok && strings.HasPrefix(detail, warning), Detail: detail})
}

// fail tells of a check that has failed.
func (e *examination) fail(what string, err error) {
	c := Check{Name: what, Detail: err.Error()}
	if f, ok := errors.AsType[*fault.Error](err); ok && len(f.Advice) > 0 {
		c.Remedy = strings.Join(f.Advice, "; ")
	}
	e.tellOf(c)
}

// note tells something that is not as it could be, and that sandboxes do without.
func (e *examination) note(what, detail string) {
	e.tellOf(Check{Name: what, OK: true, Note: true, Detail: detail})
}

// tellOf tells of a check, with what the operator can do where something is not as it could be.
func (e *examination) tellOf(c Check) {
	if c.Remedy == "" && (!c.OK || strings.Contains(c.Detail, warning)) {
		c.Remedy = remedies[c.Name]
	}
	e.tell(c)
}

// remedies are what the operator can do about a check that fails or warns, by the names of the checks. Where it is not
// here, the detail says it.
var remedies = map[string]string{
	"settings":  "Correct the settings file; `sandlot config` shows where each setting comes from",
	"policy":    "Correct the rule in the settings file, under policy",
	"tls":       "Renew the certificate, or correct tls in the settings file; the server reads a new one by itself",
	"console":   "Set public_url and ports_domain to names of different sites, with TLS",
	"oidc":      "See that the issuer in the settings file is right, and that this machine reaches it",
	"runtimes":  "Correct the setting runtimes: `sandlot doctor --all` shows what works on this machine",
	"templates": "Correct templates and default_template in the settings file",
	"gvisor":    "Do what the detail says, or set another runtime: `sandlot doctor --all` shows what works on this machine",
	"docker":    "Start the daemon, or name it by docker.host; `sandlot doctor --all` shows what works on this machine",
	"daemon":    "Name the daemon by docker.host in the settings file, or start it",
	"limits":    "Do what the detail says; until then sandboxes share more of the machine than their flavors say",
	"platform":  "Set platform: systrap, or auto, in the settings file",
	"wake-ups":  "Run the command of the detail as root on the server's machine",
	"boot":      "See docs/guide/runtimes.md: what each runtime needs of the machine, and which others there are",
	"network":   "See docs/guide/network.md about the mode and about how programs reach the network",
}

// Remedy returns what the operator can do about a check of that name.
func Remedy(name string) string { return remedies[name] }

// Examine checks the machine with these settings, and calls report after each check. It
// stops after a failure that makes the following checks impossible.
func Examine(ctx context.Context, c *config.Config, log *slog.Logger, start Starter, report func(Check)) {
	e := &examination{config: c, start: start, causes: newCauses(log.Handler()), tell: report}
	e.report(true, "settings", fmt.Sprintf("state in %s, runtime %s (see `sandlot config`)", c.Server.StateDir,
		c.Runtime.Name))
	for _, w := range app.RuleWarnings(c) {
		e.report(true, "policy", warning+w)
	}
	e.checkCertificate(log)
	e.checkConsole()
	e.checkIssuers(ctx, log)
	all, err := app.Runtimes(c, log)
	if err != nil {
		e.fail("runtimes", err)
		return
	}
	hasHost := app.HasHost(ctx, all)
	templates, err := app.Templates(c, log, hasHost, nil)
	if err != nil {
		e.fail("templates", err)
		return
	}
	for _, t := range templates.Ready() {
		e.report(true, "template", fmt.Sprintf("%s: %v", t.Name, t.LanguageNames()))
	}
	if !hasHost {
		e.report(true, "template", "host: not here; others are made of images, the ready-made ones when they are "+
			"first asked for")
	}
	usable := true
	for _, rt := range all {
		usable = e.checkRuntime(ctx, rt) && usable
	}
	if usable {
		tried, err := tryPlatforms(ctx, c, log)
		if err != nil {
			e.fail("platform", err)
		}
		usable = e.reportPlatforms(tried) && usable
	}
	if took, err := wakeUp(); err == nil {
		poll, _ := os.ReadFile(haltPollFile)
		governor, _ := os.ReadFile(governorFile)
		e.report(true, "wake-ups", wakeUps(took, strings.TrimSpace(string(poll)), strings.TrimSpace(string(governor))))
	}
	if usable {
		e.bootSandbox(ctx)
	}
}

// checkRuntime checks one runtime and closes it. It reports whether the runtime works here.
func (e *examination) checkRuntime(ctx context.Context, rt sandbox.Runtime) (usable bool) {
	err := rt.Check(ctx)
	doctor := rt.Capabilities().Doctor
	if doctor != nil {
		e.reportSearch(ctx, doctor, err == nil)
	}
	warning, how := "", snapshots(rt)
	if doctor != nil && err == nil {
		warning = doctor.Warning()
	}
	if err = errors.Join(err, rt.Close()); err != nil {
		e.fail(rt.Name(), err)
		return false
	}
	mode := "as root"
	switch {
	case !platform.IsLinux:
		mode = "by a daemon elsewhere: in a virtual machine of this one, or on another one"
	case os.Getuid() != 0:
		mode = "without root (boots are slower; memory is watched by the server, not enforced by the kernel)"
	}
	e.report(true, rt.Name(), "runs here, "+mode)
	if warning != "" {
		e.report(true, "limits", "WARNING: "+warning)
	}
	e.report(true, "snapshots", how)
	return true
}

// reportSearch says which daemon makes the sandboxes, if no settings name it, and what is where one may be but cannot
// be used. Without a daemon it also says which ones would answer.
func (e *examination) reportSearch(ctx context.Context, doctor sandbox.Doctor, works bool) {
	chosen, tried := doctor.Searched(ctx)
	if works && chosen != "" {
		e.report(true, "daemon", "found at "+chosen+"; no settings name one")
	}
	for _, t := range tried {
		if !works || chosen != "" {
			e.report(true, "daemon", oneLine(t))
		}
	}
}

// snapshots returns whether sandboxes start from preboot images, or why not.
func snapshots(rt sandbox.Runtime) string {
	prebooter := rt.Capabilities().Preboot
	if prebooter == nil {
		return "none, each sandbox boots: the runtime " + rt.Name() + " makes none"
	}
	if err := prebooter.CanPreboot(); err != nil {
		return "none, each sandbox boots: " + err.Error()
	}
	return "new sandboxes start from one that has booted, some seconds after the server's start"
}

// bootSandbox boots a sandbox, runs code in it and tries its network.
func (e *examination) bootSandbox(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	c, done, err := e.start(ctx, slog.New(e.causes))
	if err != nil {
		e.fail("boot", err)
		return
	}
	answer, err := compute(ctx, c)
	took := time.Since(start)
	err = e.causes.of(err)
	if err == nil && answer == "42" {
		e.checkNetwork(ctx, c)
	}
	if err = errors.Join(err, done()); err != nil {
		e.fail("boot", err)
		return
	}
	e.report(answer == "42", "boot", fmt.Sprintf("a sandbox booted, answered %s for 6*7 and was removed, %d ms",
		answer, took.Milliseconds()))
}

// compute lets a new session compute 6*7, in the language that it has.
func compute(ctx context.Context, c *client.Client) (answer string, err error) {
	var res builtin.CodeResult
	in := builtin.CodeInput{SessionInput: newSession, Code: "6*7"}
	err = c.JSON(ctx, "POST", "/v1/tools/execute_code", in, &res)
	if err == nil && (res.Language == "bash" || res.Language == "sh") { // in which no expression has a value
		in.SessionID, in.Language, in.Code = res.SessionID, res.Language, "exit $((6*7))"
		err = c.JSON(ctx, "POST", "/v1/tools/execute_code", in, &res)
		return strconv.Itoa(res.ExitCode), err
	}
	if res.Value != nil {
		answer = *res.Value
	}
	return answer, err
}

// newSession makes a call create a session.
var newSession = builtin.SessionInput{SessionID: "new"}

// checkNetwork connects to an address that no rule allows, and expects a refusal.
func (e *examination) checkNetwork(ctx context.Context, c *client.Client) {
	mode := e.config.Network.Mode
	if mode == string(egress.Open) {
		e.report(true, "network", "WARNING: open: sandboxes use this machine's own network. No rule holds; they reach "+
			"whatever it reaches, services on its loopback and cloud metadata included")
		return
	}
	var res builtin.CommandResult
	err := c.JSON(ctx, "POST", "/v1/tools/execute_command", builtin.CommandInput{SessionInput: newSession,
		Timeout: 20, Command: refusedConnection}, &res)
	switch {
	case err != nil:
		e.fail("network", e.causes.of(err))
	case len(res.NetworkRefused) == 0 && res.ExitCode != nil && *res.ExitCode == notFound:
		e.report(true, "network", mode+"; WARNING: not tried, as the sandbox has neither bash nor nc")
	case len(res.NetworkRefused) != 1 || res.NetworkRefused[0].Host != "192.0.2.1":
		e.report(false, "network", "a connection to an address that no rule allows was not led to the broker; "+
			"nothing but loopback can be reached, and package managers will fail")
	default:
		e.report(true, "network", fmt.Sprintf("%s; what no rule allows was refused (see `sandlot network`)%s", mode,
			e.access(ctx, c, res.SessionID)))
	}
}

// refusedConnection connects to an address that no rule allows: as programs do that need no settings, or by the proxy
// that the agent has set. Where there is no bash, nc does it.
const refusedConnection = `ask='CONNECT 192.0.2.1:9 HTTP/1.1\r\n\r\n'
[ "$https_proxy" = http://127.0.0.1:3128 ] && proxy=1
if [ -z "$BASH_VERSION" ]; then
if [ "$proxy" ]; then printf "$ask" | nc -w 10 127.0.0.1 3128; else nc -w 10 192.0.2.1 9 < /dev/null; fi; exit
fi
if [ "$proxy" ]; then exec 3<>/dev/tcp/127.0.0.1/3128; printf "$ask" >&3; else exec 3<>/dev/tcp/192.0.2.1/9; fi
head -c 1 <&3`

// notFound is the exit code of a shell that does not find a program.
const notFound = 127

// access describes how programs of a session reach the network; empty if that is not known.
func (e *examination) access(ctx context.Context, c *client.Client, session string) string {
	var list builtin.SessionList
	err := c.JSON(ctx, "POST", "/v1/tools/get_sessions", builtin.SessionInput{SessionID: session}, &list)
	if err != nil || len(list.Sessions) != 1 {
		return ""
	}
	switch access := list.Sessions[0].Network.Access; access {
	case "":
		return ""
	case "proxy":
		return ". WARNING: the kernel can redirect no connections in sandboxes; only programs that use the proxy of " +
			"HTTP_PROXY and HTTPS_PROXY reach anything"
	default:
		return "; connections are redirected by " + access
	}
}
