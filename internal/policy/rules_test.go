package policy

import (
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

func compileText(t testing.TB, text ...string) *Rules {
	t.Helper()
	var list []Rule
	for i, line := range text {
		r, err := ParseRule(line, fmt.Sprintf("rules:%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return Compile(list)
}

var (
	ann = auth.User("ann", false)
	bob = auth.User("bob", false)
	bot = auth.User("bot", true)
	// The user of a service.
	svcAnn, _ = auth.FromID("user:svc/ann")

	eve = func() auth.Principal {
		p := auth.User("eve", false)
		p.Roles = auth.NewRoles(auth.Operator)
		return p
	}()
)

func TestRules(t *testing.T) {
	for _, c := range []struct {
		rules  string // separated by " / "
		who    auth.Principal
		op     Operation
		detail string
		want   Effect
		place  string // empty: no rule decided
	}{
		{"", ann, ShellExecute, "rm -rf /", Allow, ""},
		{"deny ann shell.execute", ann, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny ann shell.execute", bob, ShellExecute, "ls", Allow, ""},
		{"deny user:ann shell.execute", ann, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny user shell.execute", bot, ShellExecute, "ls", Allow, ""},
		{"deny user shell.execute", auth.Local, ShellExecute, "ls", Allow, ""},
		{"deny service shell.execute", bot, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny service shell.execute", svcAnn, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny user shell.execute", svcAnn, ShellExecute, "ls", Allow, ""},
		{"deny svc shell.execute", svcAnn, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny svc shell.execute", ann, ShellExecute, "ls", Allow, ""},
		{"deny user:svc/ann shell.execute", svcAnn, ShellExecute, "ls", Refuse, "rules:1"},
		{"deny user:svc/ann shell.execute", auth.User("svc", true), ShellExecute, "ls", Allow, ""},
		{"deny user network.reach", svcAnn, NetworkReach, "a.example:443", Refuse, "rules:1"},
		{"deny service shell.execute", ann, ShellExecute, "ls", Allow, ""},
		{"deny local shell.execute", auth.Local, ShellExecute, "ls", Refuse, "rules:1"},
		{"allow role:operator * / deny * *", eve, ShellExecute, "ls", Allow, "rules:1"},
		{"allow role:operator * / deny * *", ann, ShellExecute, "ls", Refuse, "rules:2"},
		{"deny * *", auth.Principal{}, HealthRead, "", Allow, ""},
		{"deny * *", auth.Principal{}, LoginBegin, "", Allow, ""},
		{"allow * shell.execute git * / deny * shell.execute", ann, ShellExecute, "git status", Allow, "rules:1"},
		{"allow * shell.execute git * / deny * shell.execute", ann, ShellExecute, "ls", Refuse, "rules:2"},
		{"ask * file.* / deny * file.write", ann, FileWrite, "x", Ask, "rules:1"},
		{"ask * *", ann, ToolList, "", Allow, ""}, // nobody is asked about it
		{"ask * *", ann, MCPCall, "a/b", Ask, "rules:1"},
		{"deny * mcp.call github/* / allow * mcp.call", ann, MCPCall, "github/create", Refuse, "rules:1"},
		{"deny * mcp.call github/*", ann, MCPCall, "gitlab/create", Allow, ""},
		{"deny * mcp.install * npm:*", ann, MCPInstall, "x npm:evil", Refuse, "rules:1"},
		{"deny * mcp.connect d curl *", ann, MCPConnect, "d sh -c 'curl x'", Refuse, "rules:1"},
		{"deny * mcp.install * npm:evil", ann, MCPInstall, "x npm:evil sh", Refuse, "rules:1"},
		{"allow * mcp.connect * https://*.example.com/* / deny * *", ann, MCPConnect, "d https://a.example.com/mcp",
			Allow,
			"rules:1"},
		{"allow * mcp.connect * python3 * / deny * *", ann, MCPConnect, "d python3 a b", Allow, "rules:1"},
		{"allow * mcp.install * npm:@mcp/* / deny * *", ann, MCPInstall, "d npm:@mcp/docs", Allow, "rules:1"},
		{"deny * code.execute bash", ann, CodeExecute, "bash", Refuse, "rules:1"},
		{"deny * code.execute bash", ann, CodeExecute, "python", Allow, ""},
		{"deny * port.expose 22", ann, PortExpose, "22", Refuse, "rules:1"},
		{"deny * port.expose 22", ann, PortExpose, "2222", Allow, ""},
		{"deny * network.*", ann, NetworkReach, "a.example:443", Refuse, "rules:1"},
		// A look-up has no port.
		{"allow * network.reach a.example:443 / deny * network.reach", ann, NetworkReach, "a.example", Allow,
			"rules:1"},
		{"deny * network.reach a.example:22", ann, NetworkReach, "a.example", Allow, ""},
		{"ask * network.reach *.example:443", ann, NetworkReach, "a.example", Ask, "rules:1"},
		{"deny * * secret*", ann, SecretSet, "secret_a", Refuse, "rules:1"},
		// A look-up has no port.
		{"allow * network.reach a.example:443 / deny * network.reach", ann, NetworkReach, "a.example", Allow,
			"rules:1"},
		{"deny * network.reach a.example:22", ann, NetworkReach, "a.example", Allow, ""},
		{"ask * network.reach *.example:443", ann, NetworkReach, "a.example", Ask, "rules:1"},
		{"deny * * secret*", ann, SessionList, "", Allow, ""}, // it has no detail
		{"deny * session.create node", ann, SessionCreate, "node", Refuse, "rules:1"},
	} {
		var text []string
		if c.rules != "" {
			text = strings.Split(c.rules, " / ")
		}
		d := compileText(t, text...).Decide(Question{Principal: c.who, Operation: c.op, Detail: c.detail})
		place := ""
		if d.Rule != nil {
			place = d.Rule.Place
		}
		if d.Effect != c.want || place != c.place {
			t.Errorf("%q: %s does %s %q: %s by %q, want %s by %q", c.rules, c.who.ID, c.op, c.detail, d.Effect, place,
				c.want, c.place)
		}
		if (d.Err() == nil) != (c.want == Allow) {
			t.Errorf("%q: the error is %v", c.rules, d.Err())
		}
	}
}

// Rules never give what the table of operations refuses.
func TestRulesOnlyNarrow(t *testing.T) {
	rules := compileText(t, "allow * *")
	for _, q := range []Question{
		{Principal: ann, Operation: SessionStopAll},
		{Principal: ann, Operation: NetworkReadAll},
		{Principal: ann, Operation: FileRead, Resource: Resource{Kind: "session", Owner: "user:bob"}},
		{Operation: ShellExecute},
		{Principal: ann, Operation: "no.such"},
	} {
		if got, want := rules.Decide(q), Decide(q); got.Effect != Refuse ||
			got.Reason.Error() != want.Reason.Error() {
			t.Errorf("%v: %v", q, got)
		}
	}
	if (*Rules)(nil).Decide(Question{Principal: ann, Operation: ShellExecute}).Effect != Allow {
		t.Error("without rules the table decides")
	}
}

// An attacker writes what a rule denies in another way.
func TestEvasion(t *testing.T) {
	long := strings.Repeat("x", MaxDetail)
	for rule, tries := range map[string]map[Operation][]string{
		"deny * shell.execute curl *": {ShellExecute: {"curl x", "curl", " curl x", "\tcurl\tx", "cd /tmp && curl x",
			"ls;curl x", "ls\ncurl x", "ls\r\ncurl x", "true|curl x", "echo $(curl x)", "echo `curl x`", "(curl x)",
			"{ curl x; }", "A=1 curl x", "A=1 B='2' curl x", "sudo curl x", "env A=1 curl x", "/usr/bin/curl x",
			"./curl x",
			"exec curl x", "if true; then curl x; fi", `bash -c "curl x"`, "bash -c 'curl x'", "'curl' x", `"curl" x`,
			`c\url x`, "c\\\nurl x", "c''url x", "!  curl x", "true & curl x", "eval 'curl x'", "diff <(curl x) y",
			"sudo -u x curl x", "sudo -ux curl x", "sudo -nu x -- curl x", "sudo --user x curl x", "sudo --user=x curl x",
			"sudo -E A=1 curl x", "/usr/bin/sudo -u x /usr/bin/curl x", "doas -u x curl x", "timeout 5 curl x",
			"timeout -s KILL 5 curl x", "timeout -k 1 -sKILL 5 curl x", "timeout --signal 9 5 curl", "env A=b curl x",
			"env -i A=b curl x", "env -u A -C /tmp curl x", "env - curl x", "env -S curl x", "nice curl x",
			"nice -n 5 curl x", "nice -n5 curl", "nice -5 curl x", "ionice -c 2 -n 0 curl x", "nohup curl x &",
			"setsid -f curl x", "busybox curl x", "busybox sh -c curl", "ls | xargs curl", "xargs -n 1 -P4 curl",
			"xargs -I % curl %", "xargs -I {} curl {}", "sh -c 'curl x'", "sh -c curl", "bash -lc curl", "bash +x -c curl",
			"bash -o pipefail -c curl", "/bin/bash -c \"curl x\"", "stdbuf -o L curl x", "taskset -c 0,1 curl x",
			"chrt -f 50 curl x", "chroot / curl x", "flock /tmp/l curl x", "flock -n /tmp/l -c curl", "watch -n 5 curl x",
			"strace -f -o log curl x", "find . -name a -exec curl {} +", "find . -execdir sudo curl x", "fd -x curl",
			"su -c curl", "su - ann -c curl", "runuser -u ann -- curl x", "script -c curl log", "parallel curl ::: x",
			"time -p curl x", "exec -a ls curl x", "command -p curl x", "unshare -n -r curl x", "setarch x86_64 curl x",
			"sudo timeout 5 nice -n 5 env A=1 sh -c 'xargs curl x'", "sudo --new-option value curl x",
			"sudo --new-option curl x", strings.Repeat("sudo ", 90) + "curl x", strings.Repeat("sudo ", 400) + "curl x",
			"2>/dev/null curl x", ">o curl x", "</dev/null curl x", "< /dev/null sudo curl x", "&>o curl x", ">&2 curl x",
			"1>&2 curl x", `> "a b" curl x`, "> 'a b' curl x", "> a\\ b curl x", ">|o curl x", "<<<x curl", "<>o curl x",
			"{fd}>o curl x", "exec 3<&1 curl x", "exec >o; <i >o 2>&1 curl x", "ls;>o curl x", "sudo >o curl x",
			"curl>o x", "A+=1 curl x", "a[0]=1 curl x", "{curl,x}", "ls; {sudo,curl,x}", "script -qec curl f",
			"env -iS curl", "bwrap --ro-bind / / --dev /dev --proc /proc curl x", "proot -r / -b a:b curl x",
			"systemd-run -p A=b --uid 5 curl x", "gdb -ex run --args curl x", "valgrind --tool=memcheck curl x",
			"perf stat -e x curl x", "perf record -o x -- curl x", "hyperfine -w 3 curl", "uv run --with y curl x",
			"poetry run curl x", "npm exec -- curl x", "npx -y curl x", "conda run -n y curl x", "direnv exec . curl x",
			"tini -s -- curl x", "dumb-init curl x", "gosu root curl x", "su-exec a:b curl x", "numactl --all curl x",
			"cgexec -g cpu:x curl x", "ssh-agent curl x", "xvfb-run -a -s y curl x", "torify curl x", "faketime y curl x",
			"screen -dmS y curl x", "tmux new-session -d -s y curl x", "git bisect run curl x", "nix-shell -p y --run curl",
			"/lib64/ld-linux-x86-64.so.2 /usr/bin/curl x", "/lib/ld-musl-x86_64.so.1 curl x", "rg --pre curl x",
			"start-stop-daemon --start --exec /usr/bin/curl -- x", "runcon -t y curl x", "capsh --drop=y -- -c curl",
			"i386 curl x", "fish -c curl", "tcsh -c curl", "find . | entr -r curl x",
			"su -ccurl x", "su -ccurl", "su -lccurl x", "su - ann -ccurl", "su --command=curl", "su -csync curl -c curl",
			"runuser -ccurl ann", "sg root -ccurl", "sg root -c curl", "env -Scurl x", "env -iScurl", "env --split-string=curl x",
			"script -ccurl f", "flock l -ccurl", "fd -xcurl", "nix-shell --run=curl", "npx -c curl", "su -csudo -E curl x",
			"ssh host curl x", "ssh -p 22 -i k ann@host curl x", "ssh -tt host sudo curl x",
			"echo curl x | sh", "echo curl x|bash -", "echo -n curl x | sudo -E bash -s -- y", "printf curl | sh 2>&1",
			"(echo curl x) | sh", "{ echo curl x; } | /bin/sh -ex", "echo curl x |& sh >o", "echo 'cu''rl x' | sh",
			"ls; . <(echo curl x)", "source <(echo curl x)", "bash <(echo curl x)", "eval $(echo curl x)", "eval `echo curl x`",
			`sh -c "$(echo curl x)"`, "echo curl x | source /dev/stdin", "echo curl x | at now", "echo curl x | parallel",
			"sh <<< curl", "sh <<EOF\ncurl x\nEOF", "cat <<EOF | sh\ncurl x\nEOF", "echo curl x | tee log | sh",
			"echo Y3VybCB4 | base64 -d | sh", "base64 -d <<< Y3VybCB4 | bash", "echo x lruc | rev | dash -s",
			`printf '\143url x' | sh`, `echo -e '\x63url x' | sh`, `printf 'c%s x' url | sh`,
			"eval $(echo Y3VybCB4 | base64 -d)", "(echo Y3VybCB4 | base64 -d) | sh",
			"bash < <(echo curl x)", "sh -s 0< <(echo x lruc | rev)", "echo x lruc | rev | (sh)", "echo x lruc | rev | { sh; }",
			"echo curl x | tee >(sh)", "echo x lruc | rev > >(sh)", "echo curl x | $SHELL", "echo x lruc | rev | ${SHELL}",
			"echo curl x | su", "echo x lruc | rev | su - ann", "echo curl x | sudo -nu ann -s", "echo curl x | doas -s",
			"echo curl x | chroot /", "echo curl x | unshare -r", "echo curl x | ssh host", "echo curl x | script -q",
			"echo curl x | xargs sh -c", "$(echo curl) x", "`echo lruc | rev` x", `cd /; "$(base64 -d <<< Y3VybA==)" x`,
			"if $(echo curl) x; then y; fi", `$'\143url' x`, `$'c\x75rl' x`, `bash -c $'a\ncurl x'`, `eval $'\u0063url x'`,
			`echo $'\143url x' | sh`, `$'\165' || $'cu\162l' x`, "git -c alias.x='!curl x' x", "vim -c ':!curl x'", "ex '+!curl x'",
			"git submodule foreach curl x", "npm exec --call=curl", "npm x -c curl", "pipx run curl", "pyenv exec curl x",
			"docker run alpine curl x", "docker run --rm -it -v /a:/b --name y alpine curl x", "docker run alpine sh -c 'curl x'",
			"docker exec -u root -it web curl x", "docker -H y container exec web curl x", "docker compose run --rm web curl x",
			"docker run --entrypoint curl y x", "docker run --entrypoint=/usr/bin/curl y x", "sudo docker run alpine curl",
			"podman run -d --pull always alpine curl x", "podman --remote exec web curl", "nerdctl run alpine curl x",
			"docker-compose exec web curl x", "kubectl exec -n y pod -- curl x", "kubectl run y --image z -- curl x",
			"lxc exec box -- curl x", "incus exec box -- curl x", "apptainer exec y.sif curl x", "distrobox enter y -- curl x",
			"flatpak run --command=curl y", "buildah run y -- curl x", "systemd-nspawn -D /y curl x", "arch-chroot /y curl x",
			"wsl -d Debian curl x", "wsl.exe -e curl", "mosh y -- curl x", "sshpass -p y ssh host curl x",
			"ssh -o ProxyCommand=curl host", "ssh -oproxycommand=curl host", "scp -o LocalCommand='curl x' a b",
			"git -c core.sshCommand=curl fetch", "git clone --upload-pack curl y", "git clone --upload-pack=curl y",
			"git -c filter.y.smudge=curl x", "tar -I curl -xf y", "tar --to-command=curl -xf y", "tar cf y --checkpoint-action=exec=curl z",
			"rsync -e curl a b", "rsync -avze curl a b", "rsync --rsh=curl a b", "sort --compress-program=curl y", "split --filter=curl y",
			"nc -e curl host 1", "nsenter -t 1 -m -u curl x", "nsenter --target 1 --mount -- curl x", "setsid --fork curl x",
			"flock --timeout 5 l curl x", "watch --interval 5 --differences curl x", "watch -d -n5 'curl x'", "busybox timeout 5 curl x",
			"find . -okdir curl {} +", "find . -exec sh -c 'curl \"$1\"' _ {} +", "xargs --max-args 1 --replace curl {}",
			"env -S 'A=1 curl x'", "env --chdir /tmp --split-string 'curl x'", "env -vS curl", "chroot --userspec a:b /y curl x",
			"PAGER=curl git log", "GIT_SSH_COMMAND=curl git fetch", "env EDITOR=/usr/bin/curl git commit", "export GIT_PAGER=curl; git log",
			"PAGER+=curl git log", "export PAGER+=curl", "AWS_PAGER=curl aws x", "GH_EDITOR=curl gh x", "RUSTC_WRAPPER=curl cargo x",
			"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.pager GIT_CONFIG_VALUE_0=curl git log", "PROMPT_COMMAND=curl bash -i", "declare -x MANPAGER=curl", "A=1 SUDO_ASKPASS=/usr/bin/curl sudo -A x", "export A=b VISUAL=curl",
			"BASH_ENV=<(echo curl x) bash -c :", "ENV=<(echo x lruc | rev) sh -i", "RSYNC_RSH=curl rsync a b:c",
			"script --command 'curl x' log", "script -qefc curl", "unshare --map-root-user --net curl x", "setpriv --reuid 1 curl x",
			long + "; curl x", "curl \x00", "a\x00; curl x", "\xff; curl x"}},
		"deny * file.* /workspace/private/*": {
			FileRead: {"/workspace/private/a", "private/a", "./private/a", "/workspace//private/a",
				"/workspace/./private/a",
				"/workspace/x/../private/a", "x/../private/a", "../workspace/private/a", "/../workspace/private/a",
				"private//a", "private/../private/a", "/workspace/private/a/", "/workspace/private/a\x00.txt",
				"/workspace/" + long, "\xffprivate/a"},
			FileWrite:  {"private/b/c", "/workspace/private/../private/b"},
			FileList:   {"/workspace/private", "private", "private/", "private/."},
			FileRemove: {"/workspace", "/workspace/", "/", ".", "private", "private/a", "x/.."},
		},
		"deny * network.reach bad.example": {NetworkReach: {"bad.example:443", "BAD.example:80", "bad.example.:443",
			"bad.example", "ｂａｄ.example:443", "bad。example:443"}},
		"deny * network.reach *.bad.example:443": {NetworkReach: {"a.bad.example:443", "A.B.BAD.EXAMPLE.:443"}},
		"deny * network.reach bücher.example": {NetworkReach: {"xn--bcher-kva.example:443",
			"BÜCHER.example:1"}},
		"deny * network.reach xn--bcher-kva.example": {NetworkReach: {"bücher.example:443"}},
		"deny * network.reach 127.0.0.1":             {NetworkReach: {"127.0.0.1:80", "[::ffff:127.0.0.1]:80"}},
		"deny * network.reach [2001:db8::1]":         {NetworkReach: {"[2001:db8::1]:443", "[2001:0DB8:0::1]:443"}},
		"deny * network.reach 10.0.0.0/8": {NetworkReach: {"10.1.2.3:80", "[::ffff:10.1.2.3]:80", "[64:ff9b::a01:203]:80",
			"[64:ff9b:1::10.1.2.3]:80", "[2002:a01:203::1]:80", "[2001:0:1400:1::f5fe:fdfc]:80", "[::10.1.2.3]:80",
			"[2a00::5efe:10.1.2.3]:80", "[::ffff:0:10.1.2.3]:80", "[64:ff9b::10.1.2.3]"}},
		"deny * network.reach 20.1.2.3:22": {NetworkReach: {"20.1.2.3:22", "[64:ff9b::20.1.2.3]:22",
			"[2002:1401:203::]:22"}},
		"deny * mcp.connect * https://bad.example/*": {MCPConnect: {"x " + Address("HTTPS://BAD.example:443/mcp"),
			"x " + Address("https://bad.example./mcp"), "x " + Address(" https://bad.example/mcp")}},
	} {
		rules := compileText(t, rule)
		for op, details := range tries {
			for _, d := range details {
				if got := rules.Decide(Question{Principal: ann, Operation: op, Detail: d}); got.Effect != Refuse {
					t.Errorf("%s: %s %.60q passes", rule, op, d)
				}
			}
		}
	}
}

// A rule that denies a command denies no arguments of others.
func TestArgumentsAreNoCommands(t *testing.T) {
	rules := compileText(t, "deny * shell.execute curl *")
	for _, d := range []string{"sudo apt install curl", "sudo -E -u ann make curl", "timeout -s KILL 5 make curl",
		"xargs -n 1 grep curl", "find . -name curl", "find curl -name x", "env -i A=1 make curl", "bash build.sh curl",
		"nice -n 5 make curl", "echo sudo curl x", "sudo -u curl make", "timeout 5 curly x", "script curl", "A=curl make",
		"echo a{b,curl}", "uv add curl", "npm install curl", "git log curl",
		"gdb curl", "poetry run make curl", "a[curl x", "tini make curl",
		"su -l ann", "su -cmake curl", "ssh curl make", "sg curl -cmake",
		"wget -qO- https://x.example/i.sh | sh", "cat build.sh | bash -s", "echo y | bash build.sh curl",
		`eval "$(ssh-agent -s)"`, "source <(make curl)", "echo curl x | grep sh", "echo y | sh build.sh",
		"printf done%s >>f && wget x | sh",
		"echo y | sudo -S make curl", "printf '%s\n' y y | sudo passwd curl", "printf %s y | su ann -c make", "tar c . | ssh host tar x",
		"x=$(echo curl | tr a b); make", "for f in $(echo curl | tr , ' '); do make; done", `echo "a | $(echo b | tr a b)"`,
		"echo x | tr a b | (cat; sh build.sh)", "echo a | xargs -n1 sh build.sh", "[ a != curl ]",
		"git clean -xdf curl", "git commit -m 'a\n$(echo b | tr a b)'", "printf '%s' a | sudo tee f", "echo a | tee f >(wc)",
		"docker pull curl", "docker run alpine make curl", "docker exec web make curl", "docker build -t curl .", "kubectl get pod curl",
		"tar xf y curl", "tar -czf curl.tgz y", "rsync -av curl y", "sort curl", "git -c user.name=curl log", "ssh -o User=curl host make",
		"docker ps --filter name=curl", "scp curl host:y",
		"PAGER=less git log curl", "export EDITOR=vim; make curl", "export curl", "PATH=curl make", "ENV=$(echo a | tr a b) make curl", "A=1 EDITOR=vim git commit -m curl",
		strings.Repeat("a ", 2000)} {
		if got := rules.Decide(Question{Principal: ann, Operation: ShellExecute, Detail: d}); got.Effect != Allow {
			t.Errorf("%.60q is denied", d)
		}
	}
}

// A rule that allows does not allow more than its text says.
func TestAllowIsStrict(t *testing.T) {
	for rule, tries := range map[string]map[Operation][]string{
		"allow * shell.execute git *": {ShellExecute: {"git status; rm x", "git status && rm x", "git status\nrm x",
			"git $(rm x)", "git `rm x`", "git status | sh", "git log > x", "git", "gitx y", "/tmp/git status",
			"A=1 git status",
			"GIT_SSH_COMMAND= git status", "git <(rm x)", "git " + strings.Repeat("x", MaxDetail), "git \x00",
			"git ${IFS}x"}},
		"allow * file.read /workspace/public/*": {FileRead: {"/workspace/public", "/workspace/public/../private/a",
			"public/../../etc/passwd", "/workspace/publicity", "public/a\x00"}},
		"allow * file.remove /workspace/public/*": {FileRemove: {"/workspace", "/workspace/public", "/"}},
		"allow * network.reach api.example:443": {NetworkReach: {"api.example:80", "api.example.evil:443",
			"xapi.example:443",
			"evil:443", "evil"}},
		"allow * network.reach 20.0.0.0/8": {NetworkReach: {"[64:ff9b::20.1.2.3]:443", "[2002:1401:203::]:443",
			"[::20.1.2.3]:443"}},
		"allow * network.reach *.example:443": {NetworkReach: {"example:443", "example.evil:443", "a.example:4430"}},
		"allow * mcp.call github/*": {MCPCall: {ServerName("github/evil") + "/tool", "githubx/tool",
			"github"}},
		"allow * mcp.connect * npx @mcp/docs": {MCPConnect: {"d NODE_OPTIONS= npx @mcp/docs",
			"d " + ServerVariables(map[string]string{"npm_config_registry": "x"}) + "npx @mcp/docs",
			"d PATH= LD_PRELOAD= npx @mcp/docs"}},
		"allow * mcp.install * npm:@mcp/docs": {MCPInstall: {"d NODE_OPTIONS= npm:@mcp/docs", "d HTTPS_PROXY= npm:@mcp/docs"}},
		"allow * mcp.connect * https://mcp.example.com/*": {MCPConnect: {
			"d python3 /workspace/evil.py https://mcp.example.com/",
			"d " + ServerCommand([]string{"https://mcp.example.com/x"}), "d https://mcp.example.com@evil.test/",
			"d " + ServerCommand([]string{"sh", "-c", "https://mcp.example.com/ || evil"}),
			"d https://mcp.example.com/../x"}},
		"allow * mcp.connect * https://*.example.com/*": {MCPConnect: {"d https://evil.test/.example.com/"}},
		"allow * mcp.install * npm:@mcp/*":              {MCPInstall: {"d npm:@mcp/docs sh -c evil"}},
		"allow * mcp.install good npm:good": {MCPInstall: {ServerName("good npm:good") + " npm:evil",
			"good npm:good@1",
			"good pip:good"}},
	} {
		rules := compileText(t, rule, "deny * *")
		for op, details := range tries {
			for _, d := range details {
				if got := rules.Decide(Question{Principal: ann, Operation: op, Detail: d}); got.Effect != Refuse {
					t.Errorf("%s: %s %.60q is allowed", rule, op, d)
				}
			}
		}
	}
}

func TestParseRule(t *testing.T) {
	for text, word := range map[string]string{
		"":                                 "begins with allow, ask or deny",
		"refuse * shell.execute":           "begins with allow, ask or deny",
		"deny *":                           "an operation is missing",
		"deny nobody! shell.execute":       "role:NAME",
		"deny role:king shell.execute":     "must be one of",
		"deny * shell.exec":                `did you mean "shell.execute"?`,
		"deny * sh*":                       "there is no operation",
		"ask * tool.list":                  "cannot ask",
		"deny * session.list x":            "has no detail",
		"deny * network.reach https://x/y": "is not a host",
		"deny service network.reach":       "name the user",
		"allow role:operator port.visit":   "name the user",
		"deny * login.*":                   "is not known",
		"deny ann health.read":             "is not known",
		"deny * port.expose http":          "a port is a number",
		"deny * network.reach a.b:https":   "a port is a number",
		"deny * mcp.call github":           "github/*",
		"deny * mcp.connect evil":          "evil *",
		"allow * mcp.connect docs*":        "docs* *",
		"deny * file.read /a/../b/*":       "without . and ..",
		"deny * file.* ./private/*":        "without . and ..",
		"deny * shell.execute a\x00":       "a pattern is text",
	} {
		if _, err := ParseRule(text, "x:1"); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v, want %q", text, err, word)
		}
	}
	r, err := ParseRule("  deny \t service   shell.execute   curl  * ", "x:1")
	if err != nil || r.operation != "shell.execute" || r.pattern != "curl  *" {
		t.Errorf("%+v %v", r, err)
	}
}

// What a valid rule is not about is told where one may think otherwise.
func TestRuleWarnings(t *testing.T) {
	for text, about := range map[string]string{
		"deny service network.*":     "network.reach",
		"deny service *":             "it is not about",
		"deny service port.* 22":     "port.visit",
		"ask role:operator *":        "network.reach",
		"ask service port.*":         "",
		"allow role:operator *":      "",
		"deny * *":                   "",
		"deny ann network.*":         "",
		"deny service mcp.*":         "",
		"deny service shell.execute": "",
	} {
		r, err := ParseRule(text, "x:1")
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Warning(); !strings.Contains(got, about) || (got == "") != (about == "") {
			t.Errorf("%q: %q, want %q", text, got, about)
		}
	}
}

// What follows is decided when it is known.
func TestDetailFollows(t *testing.T) {
	rules := compileText(t, "allow * shell.execute git *", "deny * shell.execute", "deny * code.execute")
	if d := rules.Decide(Question{Principal: ann, Operation: ShellExecute, DetailFollows: true}); d.Effect != Allow {
		t.Error("refused before it is known what runs")
	}
	if d := rules.Decide(Question{Principal: ann, Operation: CodeExecute, DetailFollows: true}); d.Effect != Refuse {
		t.Error("a rule that needs no detail can decide at once")
	}
}

// A refusal does not tell what stands in the rules.
func TestRefusalNamesNoRule(t *testing.T) {
	err := compileText(t, "deny * shell.execute *topsecret*").Decide(Question{Principal: ann, Operation: ShellExecute,
		Detail: "topsecret"}).Err()
	if text := fmt.Sprint(err, fault.From(err).Data()); strings.Contains(text, "topsecret") ||
		!strings.Contains(text, "rule") {
		t.Error(text)
	}
}

func TestCommandLine(t *testing.T) {
	for want, c := range map[string]struct {
		argv []string
		env  map[string]string
	}{
		"ls -l":                                {[]string{"sh", "-c", "ls -l"}, nil},
		"a; b":                                 {[]string{"/bin/bash", "-c", "a; b"}, nil},
		"/workspace/evil/bash -c 'git status'": {[]string{"/workspace/evil/bash", "-c", "git status"}, nil},
		"./sh -c ls":                           {[]string{"./sh", "-c", "ls"}, nil},
		"/bin/../workspace/sh -c ls":           {[]string{"/bin/../workspace/sh", "-c", "ls"}, nil},
		"/usr/bin//bin/sh -c ls":               {[]string{"/usr/bin//bin/sh", "-c", "ls"}, nil},
		"busybox -c ls":                        {[]string{"busybox", "-c", "ls"}, nil},
		"ls -a":                                {[]string{"/usr/bin/dash", "-c", "ls -a"}, nil},
		"bash -lc ls":                          {[]string{"bash", "-lc", "ls"}, nil},
		"git 'a b' ''":                         {[]string{"git", "a b", ""}, nil},
		"A= B= ls":                             {[]string{"ls"}, map[string]string{"B": "x", "A": "y"}},
	} {
		if got := CommandLine(c.argv, c.env); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"*", "", true}, {"?", "", false}, {"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "acb",
			false},
		{"a?c", "aüc", true}, {"*a*b*", "xxaxxbxx", true}, {"a", "b", false}, {"**", "x", true}, {"a*", "b", false},
		{"?", "?", true}, {"*.example", "a.b.example", true},
	} {
		if glob(c.pattern, c.text, "") != c.want {
			t.Errorf("glob(%q, %q) is not %v", c.pattern, c.text, c.want)
		}
	}
}

func FuzzDetail(f *testing.F) {
	f.Add("curl x; ls", "/a/../b", "[::1]:80")
	rules := compileText(f, "allow * shell.execute git *", "deny * shell.execute *", "deny * file.read /a/*",
		"deny * network.reach *.x")
	f.Fuzz(func(t *testing.T, command, file, host string) {
		rules.Decide(Question{Principal: ann, Operation: FileRead, Detail: file})
		rules.Decide(Question{Principal: ann, Operation: NetworkReach, Detail: host})
		d := rules.Decide(Question{Principal: ann, Operation: ShellExecute, Detail: command})
		if d.Effect == Allow && strings.ContainsAny(command, operators) {
			t.Errorf("%q is allowed", command)
		}
	})
}

// BenchmarkDecide measures a decision by 100 rules, of which none matches before the last one.
func BenchmarkDecide(b *testing.B) {
	for name, form := range map[string]string{"one operation": "deny * shell.execute command-%d *",
		"one user": "deny user%d *"} {
		var text []string
		for i := range 100 {
			text = append(text, fmt.Sprintf(form, i))
		}
		rules := compileText(b, text...)
		q := Question{Principal: ann, Operation: ShellExecute,
			Detail: "cd /workspace/project && git log --oneline -20 | grep -v merge > /tmp/log.txt"}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if rules.Decide(q).Effect != Allow {
					b.Fatal("denied")
				}
			}
		})
	}
}

// What is no name of a variable is not taken for a command.
func TestNamesOfVariables(t *testing.T) {
	r, err := ParseRule("allow * shell.execute git *", "here")
	if err != nil {
		t.Fatal(err)
	}
	deny, err := ParseRule("deny * shell.execute", "here")
	if err != nil {
		t.Fatal(err)
	}
	denyRemoving, err := ParseRule("deny * shell.execute rm *", "here")
	if err != nil {
		t.Fatal(err)
	}
	rules := Compile([]Rule{r, deny})
	for _, name := range []string{"git x", "git x #", "git ';", "a-b", "a.b", "é", ""} {
		line := CommandLine([]string{"rm", "x"}, map[string]string{name: "1"})
		q := Question{Principal: auth.Local, Operation: ShellExecute, Detail: line}
		if rules.Decide(q).Effect != Refuse {
			t.Errorf("%s is allowed", line)
		}
		line = CommandLine([]string{"sh", "-c", "rm x"}, map[string]string{name: "1", "A": "2"})
		q.Detail = line
		if Compile([]Rule{denyRemoving}).Decide(q).Effect != Refuse {
			t.Errorf("%s is not denied", line)
		}
	}
}
