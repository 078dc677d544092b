package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// part is a named part of the campaign: what `make test` does not prove, since it is the same suites on other daemons
// and systems, or takes long.
type part struct {
	name    string
	minutes int      // at most, on two processors
	proves  string   // what `make test` does not
	folders []string // a change below one of these runs it in CI
	steps   []step
}

// step runs tests of some packages, or a command.
type step struct {
	name     string
	packages string // go's patterns, separated by spaces
	tests    []string
	longer   bool // `make test` runs these tests as well, with smaller numbers
	race     bool
	env      []string
	command  []string // in place of tests
}

const (
	whole      = "./test/"
	dockerUnit = "./internal/runtime/docker/..."
)

// parts are in the order of their turns.
var parts = []part{
	{
		name: "daemons", minutes: 20,
		proves: "the runtime's suite and the whole program on Podman, on daemons that map users, that are rootless, " +
			"that are reached by TLS or ssh, with gVisor as Docker's runtime; the suite with the machine's programs on " +
			"Docker, with gVisor without preboot images, with OCI images without root and from preboot images, and with a fake of " +
			"microsandbox's msb",
		folders: []string{"internal/runtime", "internal/sandbox"},
		steps: []step{
			{name: "daemons-suite", packages: dockerUnit, race: true, tests: []string{"TestPodman", "TestRemapped",
				"TestRootlessDaemon", "TestRemoteSuite", "TestRemoteRestarts", "TestSSH", "TestRunsc", "TestHostSuite"}},
			{name: "gvisor-suite", packages: "./internal/runtime/gvisor", race: true,
				tests: []string{"TestSuite", "TestImagePrebootedSuite", "TestRootlessImageSuite"}},
			{name: "msb-suite", packages: "./internal/runtime/microsandbox", race: true, tests: []string{"TestSuite"}},
			{name: "daemons-whole", packages: whole, tests: []string{"TestMappedUsers", "TestPodman", "TestDaemonByTLS",
				"TestUnprivilegedServer"}},
		},
	},
	{
		name: "docker", minutes: 20,
		proves: "the runtime's suite on Docker; what the server, the broker and the agent do beside containers in ordinary " +
			"work, at ends and under load: cells, tools in code, full disks, users, stops, kills, a daemon that restarts, " +
			"ends and is killed, limits, floods, ports, attacks on the network, changed rules",
		folders: []string{"internal/runtime/docker", "internal/sandbox", "internal/egress", "internal/port"},
		steps: []step{
			{name: "docker-suite", packages: dockerUnit, race: true, tests: []string{"TestImageSuite", "TestDaemonKilled",
				"TestDaemonEnds", "TestRunscArguments"}},
			{name: "docker", packages: whole, tests: []string{"TestDockerMore", "TestDaemonRestarts"}},
		},
	},
	{
		name: "mac", minutes: 20,
		proves:  "the whole program as a Mac has it: no gVisor, no shared folders, a daemon that is elsewhere",
		folders: []string{"internal/runtime/docker", "internal/workspace"},
		steps:   []step{{name: "mac", packages: whole, tests: []string{"TestMac", "TestLikeAMac"}}},
	},
	{
		name: "systems", minutes: 10,
		proves: "types and `go vet` for arm64, macOS and Windows; the agent's tests for arm64 under qemu-user",
		folders: []string{"internal/guest", "internal/agent/wire", "cmd", "internal/autostart", "internal/fileacl",
			"internal/proc", "internal/processgroup"},
		steps: []step{
			{name: "cross", command: []string{"go", "run", "./test/cross", "linux/arm64", "darwin/arm64", "windows/amd64"}},
			{name: "emulated", command: []string{"test/emulated"}},
		},
	},
	{
		name: "long", minutes: 25,
		proves: "ten minutes of clients at work and of sessions that sleep and wake, 200 kills of the server with each " +
			"store, and 200 with sessions in every state, 1,000 principals, 200 sessions asleep and 100 live ones, floods of " +
			"tool calls of 20 s",
		folders: []string{"internal/session", "internal/store"},
		steps: []step{
			{name: "soak", packages: whole, tests: []string{"TestSoak", "TestSoakAsleep"},
				env: []string{"SANDLOT_SOAK=8m"}},
			{name: "numbers", packages: whole, longer: true, tests: []string{"TestKilledOften", "TestKilledInEveryState",
				"TestManySessions", "TestCodeToolsAttacked"},
				env: []string{"SANDLOT_KILLS=200", "SANDLOT_SESSIONS=100", "SANDLOT_FLOOD=20s"}},
			{name: "many", packages: whole, tests: []string{"TestManyPrincipals", "TestManyAsleep"},
				env: []string{"SANDLOT_PRINCIPALS=1000", "SANDLOT_ASLEEP=200"}},
		},
	},
	{
		name: "replicas", minutes: 15,
		proves: "200 faults of servers that share a PostgreSQL database: kills, stops, connections that break and are refused; " +
			"a server with sessions killed ten times under calls through the others",
		folders: []string{"internal/replica", "internal/api/forward"},
		steps: []step{
			{name: "replica-faults", packages: "./internal/replica", race: true, longer: true, tests: []string{"TestFaults"},
				env: []string{"SANDLOT_FAULTS=200"}},
			{name: "replicas", packages: whole, longer: true, tests: []string{"TestReplicas"},
				env: []string{"SANDLOT_KILLS=10"}},
		},
	},
	{
		name: "load", minutes: 20,
		proves: "one user who asks for much, servers that come and go, results of 50 MB and more in each language, of many and " +
			"of attackers, tools in code in each way of calling them, uv as the installer; sleep, snapshots and packages, apt's " +
			"too, on a server without root; gVisor's suite with an OCI image as root, and where no cgroup can be made; files of the machine " +
			"that changed while a sandbox slept",
		folders: []string{"internal/runtime/gvisor", "internal/toolcall", "internal/limit", "internal/servers/install"},
		steps: []step{
			{name: "load", packages: whole, tests: []string{"TestOneUserHoldsMuch", "TestManyCycles", "TestCodeLarge",
				"TestCodeLargeMany", "TestCodeLargeAttacked", "TestCodeToolsEachWay", "TestInstallWithUV"}},
			{name: "unprivileged", packages: whole, tests: []string{"TestHibernateUnprivileged", "TestSnapshotUnprivileged",
				"TestPackagesUnprivileged", "TestAptInstallUnprivileged"}},
			{name: "image-suite", packages: "./internal/runtime/gvisor", race: true, tests: []string{"TestOCIImageSuite",
				"TestChangedAsleep", "TestReadOnlyCgroups"}},
		},
	},
	{
		name: "api", minutes: 15,
		proves: "the HTTP API against its description, by requests that Schemathesis makes up; an operator who works from " +
			"elsewhere; five more MCP servers of npm and PyPI, tool by tool; MCP's conformance suites with the hub as server and as client",
		folders: []string{"internal/api", "internal/servers", "internal/mcpclient"},
		steps: []step{{name: "api", packages: whole, tests: []string{"TestAPIDescription", "TestOperator", "TestThirdPartyMore",
			"TestHubConformance", "TestHubClientConformance"}}},
	},
	{
		name: "console", minutes: 15,
		proves: "every screen of the web console in a real browser, dark and light, narrow and wide: no finding of axe-core, " +
			"nothing that the page's policy refuses, pictures of each; third-party servers in it; " +
			"by the keyboard alone, an agent's machine as a shell, and a server of a registry added, logged in and tried; forks; " +
			"seven tabs, 10,000 events, 100 MB in a terminal, a file of 1 GB, a question that changes under the pointer, a " +
			"revoked token; log-in at an OIDC provider; a " +
			"server without root whose ports are on the console's site",
		folders: []string{"internal/console"},
		steps: []step{{name: "console", packages: whole, tests: []string{"TestConsoleScreens", "TestConsoleServers",
			"TestConsoleFlows", "TestConsoleHeavy", "TestConsoleProvider", "TestConsoleUnprivileged"}}},
	},
	{
		name: "microvm", minutes: 10,
		proves: "a sandbox's life in a virtual machine of QEMU, emulated: its first process, the agent's link, recovery by " +
			"the next server, its end",
		folders: []string{"internal/runtime/qemu", "internal/guest/machine"},
		steps: []step{
			{name: "microvm-tools", command: []string{"test/microvm", ".tools"}},
			{name: "microvm", packages: "./internal/runtime/qemu", tests: []string{"TestLife"}},
		},
	},
	{
		name: "clients", minutes: 20,
		proves: "fourteen more real clients with a scripted model: figures, " +
			"mistakes, large output, third-party tools, a server that is stopped and killed under a running agent; Claude Code " +
			"by stdio and Codex by HTTP; Claude Code, " +
			"Codex, Gemini CLI and Copilot while systemd restarts their server, and while it is upgraded",
		folders: []string{"internal/gateway", "internal/mcpsession", "internal/api/client", "internal/clientconfig",
			"internal/autostart"},
		steps: []step{
			{name: "clients-tools", command: []string{"test/clients/install", ".tools"}},
			{name: "clients", packages: whole, tests: []string{"TestCommandLines", "TestCommandLinesByStdio",
				"TestFrameworks", "TestLangChain", "TestCodexCLI", "TestOtherWay", "TestAgentsOfAService"}},
		},
	},
	{
		name: "cells", minutes: 10,
		proves: "40 notebooks, and examples of installed packages' documentation, beside Jupyter; 1,000 hostile or careless " +
			"cells",
		folders: []string{"internal/guest/interp"},
		steps: []step{
			{name: "cells", packages: "./internal/guest/interp", longer: true, tests: []string{"TestCellsBesideJupyter"},
				env: []string{"SANDLOT_CELLS=all"}},
			{name: "hostile-cells", packages: whole, longer: true, tests: []string{"TestHostileCells"},
				env: []string{"SANDLOT_HOSTILE_CELLS=1000"}},
		},
	},
	{
		name: "images", minutes: 10,
		proves: "the container image and Compose files as the guide to deployment has them; the template browser, by an " +
			"agent and a person; dnf in its image, as root and without",
		folders: []string{"deploy", "internal/template"},
		steps:   []step{{name: "images", packages: whole, tests: []string{"TestContainer", "TestBrowser", "TestDnf"}}},
	},
	{
		name: "tasks", minutes: 15,
		proves: "the tasks of a working day in the template `host`, as root and without; a day in a root file system of the " +
			"machine's programs",
		folders: []string{"test/tasks", "internal/image", "internal/app/stack"},
		steps: []step{{name: "tasks", packages: whole, tests: []string{"TestTasks", "TestTasksUnprivileged",
			"TestDayInARootFileSystem"}}},
	},
	{
		name: "tasks-images", minutes: 20,
		proves:  "the same tasks in a template of an image, on gVisor and on Docker",
		folders: []string{"test/tasks", "internal/template"},
		steps:   []step{{name: "tasks-images", packages: whole, tests: []string{"TestTasksImage", "TestTasksDocker"}}},
	},
	{
		name: "release", minutes: 25,
		proves:  "the files of a release, made twice and compared, installed and run",
		folders: []string{"deploy", "internal/release"},
		steps:   []step{{name: "release", command: []string{"make", "--no-print-directory", "release"}}},
	},
}

// pattern matches tests by name.
func pattern(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// skipped is the pattern of the tests that `make unit` or `make whole` leaves to the campaign.
func skipped(stage string) string {
	var names []string
	for _, p := range parts {
		for _, s := range p.steps {
			if s.command == nil && !s.longer && (strings.HasPrefix(s.packages, "./test/") == (stage == "whole")) {
				names = append(names, s.tests...)
			}
		}
	}
	return pattern(names)
}

// runParts runs one part, or all of them.
func runParts(r *record, name string) (err error) {
	known := false
	for _, p := range parts {
		if name == p.name || name == "all" {
			known = true
			err = errors.Join(err, p.run(r))
		}
	}
	if !known {
		return fmt.Errorf("there is no part %q; the parts are: all next %s", name, names(parts))
	}
	return errors.Join(err, r.report(os.Stdout))
}

func names(all []part) string {
	var list []string
	for _, p := range all {
		list = append(list, p.name)
	}
	return strings.Join(list, " ")
}

// run runs all steps, also after one that failed.
func (p *part) run(r *record) (err error) {
	fmt.Printf("== campaign: %s: %s\n", p.name, p.proves)
	for _, s := range p.steps {
		if s.command != nil {
			err = errors.Join(err, r.stage(s.name, exec.Command(s.command[0], s.command[1:]...)))
			continue
		}
		args := []string{"--format", "testname", "--packages=" + s.packages, "--", "-vet=off", "-parallel", atOnce(),
			"-timeout", "60m", "-run", pattern(s.tests)}
		if s.race {
			args = append(args, "-race")
		}
		err = errors.Join(err, r.tests(s.name, s.env, args...))
	}
	return err
}

// atOnce is how many tests of the whole program run side by side. They mostly wait.
func atOnce() string {
	if n := os.Getenv("AT_ONCE"); n != "" {
		return n
	}
	return "6"
}

// enough is how long CI may take, with what `campaign next` adds: a part begins when its minutes fit.
const enough = 42 * time.Minute

// next runs the part whose turn it is, by the number of commits, and those whose folders were changed lately, while
// they fit.
func next(r *record) error {
	turn, err := turn()
	if err != nil {
		return err
	}
	changed, err := changedFiles()
	if err != nil {
		return err
	}
	start := time.Now()
	if stages, err := r.stages(); err == nil && len(stages) > 0 {
		start = stages[0].Start
	}
	order := []part{parts[turn]}
	for i := range parts {
		if p := parts[(turn+i)%len(parts)]; i > 0 && p.touched(changed) {
			order = append(order, p)
		}
	}
	fmt.Printf("campaign: in turn: %s; of these, the folders were changed: %s\n", order[0].name, names(order[1:]))
	for i, p := range order {
		used := time.Since(start)
		if i > 0 && used+time.Duration(p.minutes)*time.Minute > enough {
			fmt.Printf("campaign: no time is left for %s, which takes %d minutes: make campaign PART=%s\n", p.name, p.minutes,
				p.name)
			continue
		}
		err = errors.Join(err, p.run(r))
	}
	return errors.Join(err, r.report(os.Stdout))
}

// turn is the index of the part whose turn it is.
func turn() (int, error) {
	out, err := exec.Command("git", "rev-list", "--count", "HEAD").Output()
	if err != nil {
		return 0, fmt.Errorf("git rev-list --count HEAD: %w", err)
	}
	var n int
	if _, err := fmt.Sscan(string(out), &n); err != nil {
		return 0, err
	}
	return n % len(parts), nil
}

// changedFiles are the files that were changed since the commit BASE or, without that variable, within the twelve hours
// before the last commit.
func changedFiles() ([]string, error) {
	args := []string{"log", "--name-only", "--format="}
	if base := os.Getenv("BASE"); base != "" {
		args = append(args, base+"..HEAD")
	} else {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return nil, err
		}
		var last int64
		if _, err := fmt.Sscan(string(out), &last); err != nil {
			return nil, err
		}
		args = append(args, fmt.Sprintf("--since=%d", last-12*60*60))
	}
	out, err := exec.Command("git", args...).Output()
	return strings.Fields(string(out)), err
}

func (p *part) touched(files []string) bool {
	return slices.ContainsFunc(files, func(f string) bool {
		return slices.ContainsFunc(p.folders, func(folder string) bool { return strings.HasPrefix(f, folder+"/") })
	})
}

// table is the table of parts as CONTRIBUTING.md has it.
func table() string {
	var b strings.Builder
	b.WriteString("| part | minutes | proves what `make test` does not | runs in CI with a change of |\n|---|---|---|---|\n")
	for _, p := range parts {
		folders := "`" + strings.Join(p.folders, "`, `") + "`"
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", p.name, p.minutes, p.proves, folders)
	}
	return b.String()
}
