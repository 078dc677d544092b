package policy

import "testing"

// decisions checks what a rule decides about details: those of the first list match it, those of the second do not.
// A rule that allows stands before `deny * *`.
func decisions(t *testing.T, rule string, o Operation, matching, others []string) {
	t.Helper()
	text := []string{rule}
	if rule[0] == 'a' {
		text = append(text, "deny * *")
	}
	rules := compileText(t, text...)
	for want, details := range map[bool][]string{true: matching, false: others} {
		for _, d := range details {
			got := rules.Decide(Question{Principal: ann, Operation: o, Detail: d})
			if matched := got.Rule != nil && got.Rule.Text == rule; matched != want {
				t.Errorf("%s: %q matches: %v", rule, d, matched)
			}
		}
	}
}

// Rules about packages compare the package and the version that are installed, not what npm and pip take for them.
func TestPackages(t *testing.T) {
	mcp := []string{"w npm:@mcp/x", "w npm:@mcp/x@1.2.3", "w npm:@mcp/x@^2", "w npm:@mcp/x@latest",
		"w npm:@mcp/x@>=1%20<2"}
	hidden := []string{"w npm:@mcp/x@npm:is-odd@3.0.1", "w npm:@mcp/x@NPM:is-odd",
		"w npm:@mcp/z@file:/workspace/evil",
		"w npm:@mcp/z@/workspace/evil", "w npm:@mcp/z@./evil", "w npm:@mcp/z@~/evil", "w npm:@mcp/z@..",
		"w npm:@mcp/y@https://evil.test/x.tgz", "w npm:@mcp/y@git+https://evil.test/x", "w npm:@mcp/y@evil/x",
		"w npm:@mcp/y@github:evil/x", "w npm:@mcp/y@x.tgz", "w npm:@mcp/y@1.tar.gz", "w npm:@mcp/../../evil",
		"w npm:@mcp/..", "w npm:@mcp/x/y", "w npm:@mcp/x@", "w npm:@mcp%2fx", "w npm:@mcp/x@a:b"}
	decisions(t, "allow * mcp.install * npm:@mcp/*", MCPInstall, mcp, append(hidden, "w npm:is-odd", "w pip:@mcp/x",
		"w npm:@mcp/x sh"))
	decisions(t, "deny * mcp.install * npm:is-odd", MCPInstall, []string{"w npm:is-odd", "w npm:is-odd@latest",
		"w npm:is-odd@3.0.1", "w npm:IS-ODD@3", "w npm:q@npm:is-odd@3.0.1", "w npm:is-odd@3 sh -c x",
		"w npm:is-odd sh",
		"w npm:https://registry.test/is-odd.tgz", "w npm:evil/is-odd", "w npm:./is-odd", "w npm:is-odd-1.tgz",
		"w npm:git+ssh://git@evil.test/is-odd", "w nothing", "w brew:is-odd"},
		[]string{"w npm:is-even", "w npm:@is/odd@is-odd", "w pip:is-odd", "w npm:x is-odd"})
	decisions(t, "deny * mcp.install * npm:JSONStream@1.*", MCPInstall, []string{"w npm:jsonstream@1.2",
		"w npm:JSONStream@1.0"},
		[]string{"w npm:JSONStream@2", "w npm:JSONStream"})
	decisions(t, "deny * mcp.install * pip:My_Pkg", MCPInstall, []string{"w pip:my-pkg", "w pip:My.Pkg",
		"w pip:MY__PKG==1",
		"w pip:my-pkg[cli]>=1,<2", "w pip:my-pkg%20==%203.10", "w pip:my-pkg~=1 x",
		"w pip:my-pkg%20@%20https://evil.test/x.whl",
		"w pip:x;python_version>'3'", "w pip:./my-pkg", "w pip:my_pkg-1.whl", "w pip:git+https://evil.test/my-pkg"},
		[]string{"w pip:mypkg", "w pip:my-pkg-2", "w npm:my-pkg"})
	decisions(t, "allow * mcp.install * pip:mcp_server.*", MCPInstall, []string{"w pip:mcp-server-time",
		"w pip:MCP_Server_time==1.0", "w pip:mcp.server.time[x]"},
		[]string{"w pip:mcp-server-x%20@%20https://evil.test/x.whl", "w pip:mcp-server-x@file:///workspace/evil",
			"w pip:mcp-server-../../workspace/evil", "w pip:mcp-server-x.whl", "w pip:mcp-server-x==1.zip",
			"w pip:mcp-server-x.tar.gz", "w pip:mcp-server-x/", "w pip:other", "w pip:mcp-server-time sh"})
	decisions(t, "deny * mcp.install * git:https://git.test/evil/repo", MCPInstall, []string{"w git:https://git.test/evil/repo",
		"w git:https://git.test/evil/repo.git", "w git:HTTPS://GIT.test:443/evil/repo#main",
		"w git:https://git.test/evil/repo/",
		"w git:https://git.test//evil/x/../repo", "w git:https://git.test/Evil/Repo",
		"w git:https://git.test/evil/%72epo.git#v1",
		"w git:https://git.test/evil/repo?a=b", "w git:https://u@git.test/evil/repo",
		"w git:https://git.test./evil/repo sh"},
		[]string{"w git:https://git.test/evil/repository", "w git:https://other.test/evil/repo"})
	decisions(t, "allow * mcp.install * git:https://git.test/good/*", MCPInstall, []string{"w git:https://git.test/good/repo",
		"w git:https://git.test:0443/good/repo.git#v1"}, []string{"w git:https://git.test/good/../evil/repo",
		"w git:https://git.test/good/%2e%2e/evil/repo", "w git:https://git.test@evil.test/good/x"})
}

// Rules about addresses of servers compare the address, not its spelling.
func TestServerAddresses(t *testing.T) {
	decisions(t, "deny * mcp.connect * http://mcp.test:2349/*", MCPConnect, []string{"d http://mcp.test:2349/mcp",
		"d http://mcp.test:02349/mcp", "d http://mcp.test:2349", "d http://mcp.test:2349?a=/mcp",
		"d http://mcp.test:2349#x",
		"d HTTP://MCP.TEST.:002349//mcp", "d http://u:p@mcp.test:2349/", "d http://mcp.test:99999/",
		"d http://mcp.test:x/",
		"d http://mcp..test:2349/", "d http://[::1/", "d http:///x", "d http://2130706433:2349/", "d http://0x7f.1/"},
		[]string{"d http://mcp.test:23490/mcp", "d http://mcp.test/mcp", "d http://other.test:2349/",
			"d sh -c x"})
	decisions(t, "deny * mcp.connect * https://evil.example/mcp", MCPConnect, []string{"d https://evil.example:0443/mcp",
		"d https://evil.example/mcp/", "d https://evil.example/mcp?x=1", "d https://evil.example/mcp#x",
		"d https://evil.example/%6dcp",
		"d https://evil.example/a/../mcp", "d https://evil.example//mcp", "d https://evil.example/MCP",
		"d https://evil.example/./mcp"},
		[]string{"d https://evil.example/mcp2", "d https://evil.example/"})
	decisions(t, "deny * mcp.connect * HTTPS://Evil.Example:443", MCPConnect, []string{"d https://evil.example", "d https://evil.example/"},
		[]string{"d https://evil.example/mcp"})
	decisions(t, "deny * mcp.connect * http://127.0.0.1:80/*", MCPConnect, []string{"d http://[::ffff:127.0.0.1]/", "d http://127.0.0.1:080/"},
		nil)
	decisions(t, "allow * mcp.connect * https://MCP.example.com:443/a/*", MCPConnect, []string{"d https://mcp.example.com/a/b",
		"d https://mcp.example.com:0443/a/b?x"}, []string{"d https://mcp.example.com/a/../b",
		"d https://mcp.example.com/a/%2e%2e/b",
		"d https://mcp.example.com:444/a/b", "d https://mcp.example.com:x/a/b", "d http://mcp.example.com/a/b"})
	decisions(t, "allow * mcp.connect * https://mcp.example.com", MCPConnect, []string{"d https://mcp.example.com",
		"d https://mcp.example.com/"}, []string{"d https://mcp.example.com/x"})
}

// Ports are numbers, whichever way they are written.
func TestPortsAreNumbers(t *testing.T) {
	decisions(t, "deny * network.reach a.example:0443", NetworkReach, []string{"a.example:443",
		"a.example:00443", "a.example:x",
		"a..example:443"}, []string{"a.example:80"})
	decisions(t, "allow * network.reach a.example:443", NetworkReach, []string{"a.example:0443"}, []string{"a.example:x",
		"a.example:65979", "a.example:443:443"})
	decisions(t, "deny * port.expose 022", PortExpose, []string{"22"}, []string{"220"})
	if _, err := ParseRule("deny * port.expose 65536", "x:1"); err == nil {
		t.Error("no port has the number 65536")
	}
}

// A rule about a template is also about the name that it was asked for by. One that allows is about the template.
func TestTemplateNames(t *testing.T) {
	decisions(t, "deny * session.create node", SessionCreate, []string{"node", TemplateDetail("host", "node"),
		TemplateDetail("node", "base")}, []string{"host", TemplateDetail("host",
		"python"), TemplateDetail("host", "")})
	decisions(t, "allow * session.create node", SessionCreate, []string{"node", TemplateDetail("node", "base")},
		[]string{TemplateDetail("host", "node")})
	decisions(t, "deny * registry.plan a.b/c", RegistryPlan, []string{"a.b/c", "a.b/c@1.0.0", "x:a.b/c@2"}, []string{"a.b/cd", "a.b"})
	decisions(t, "deny * registry.plan a.b/c@1.0.0", RegistryPlan, []string{"a.b/c", "a.b/c@1.0.0", "x:a.b/c"},
		[]string{"a.b/c@2.0.0", "a.b/d"})
	decisions(t, "deny * registry.read x:*", RegistryRead, []string{"a.b/c", "x:a.b/c@1"}, []string{"y:a.b/c@1"})
	decisions(t, "allow * registry.plan x:a.b/*", RegistryPlan, []string{"x:a.b/c@1", "x:a.b/c"}, []string{"a.b/c", "y:a.b/c",
		"y:x:a.b/c"})
	decisions(t, "allow * registry.plan a.b/*", RegistryPlan, []string{"x:a.b/c@1", "a.b/c"}, []string{"a.c/b"})
	decisions(t, "allow * session.create host", SessionCreate, []string{TemplateDetail("host", "node")}, nil)
}

// Rules that deny match also where the pattern has wildcards in place of the type, the scheme or the name of a server,
// and where it names what details do not have: the scheme's own port, letters in upper case, other separators.
func TestPatternsOfServers(t *testing.T) {
	for pattern, details := range map[string][]string{
		"* *my_pkg*":                   {"w pip:my_pkg", "w pip:My.Pkg==1", "w pip:my-pkg sh"},
		"*pip:my_pkg*":                 {"w pip:my_pkg", "w pip:MY-PKG[x]"},
		"* ???:my.pkg":                 {"w pip:my_pkg", "w pip:my--pkg>1"},
		"* git:https://g.test/a/b#v1":  {"w git:https://g.test/a/b#v1", "w git:https://g.test/a/b.git#v1"},
		"* git:http*://G.test:443/a/b": {"w git:https://g.test/a/b.git#v1"},
	} {
		decisions(t, "deny * mcp.install "+pattern, MCPInstall, details, []string{"w pip:mypkg", "w npm:my-pkgs",
			"w git:https://g.test/a/bc"})
	}
	decisions(t, "deny * mcp.install * npm:my.pkg", MCPInstall, []string{"w npm:my.pkg@1"}, []string{"w npm:my-pkg"})
	for _, pattern := range []string{"* *evil.example:443*", "* *://evil.example:443/*", "* https://evil.example:*/*",
		"* http?://Evil.Example.:0443/mcp", "* https://evil.example:4?3/*", "*Evil.Example*", "*://EVIL.example/*",
		"* https://evil.example/a/../mcp", "* https://evil.example/%6Dcp"} {
		decisions(t, "deny * mcp.connect "+pattern, MCPConnect, []string{"d https://evil.example/mcp",
			"d https://evil.example:443/mcp", "d https://EVIL.example/%6dcp?x"}, []string{"d https://evil.test/mcp",
			"d evil.test"})
	}
	decisions(t, "deny * mcp.connect * http*://bücher.example/*", MCPConnect,
		[]string{"d https://xn--bcher-kva.example/x", "d http://BÜCHER.example"}, nil)
	decisions(t, "deny * mcp.connect * http://127.0.0.1:*", MCPConnect, []string{"d http://127.0.0.1",
		"d http://[::ffff:7f00:1]/", "d http://127.0.0.1:81/"}, []string{"d http://127.0.0.2/"})
	decisions(t, "deny * network.reach ::ffff:10.0.0.0/104", NetworkReach, []string{"10.1.2.3:80", "[::ffff:10.0.0.1]:80"},
		[]string{"11.0.0.1:80"})
	decisions(t, "allow * mcp.connect * https://good.example/*", MCPConnect, []string{"d https://good.example:443/x"},
		[]string{"d https://good.example:444/x"})
	for _, never := range []string{"mcp.connect * https://u:p@evil.example/*", "mcp.connect * https://evil.example/mcp#x",
		"mcp.install * git:https://u@g.test/*"} {
		if _, err := ParseRule("deny * "+never, "x:1"); err == nil {
			t.Errorf("%s never matches", never)
		}
	}
}

// TestVariablesInDetails: variables that make another server of a command or a package are part of the detail. Rules that
// allow do not match it without them; rules that deny match with and without.
func TestVariablesInDetails(t *testing.T) {
	detail := func(target string, names ...string) string {
		env := map[string]string{}
		for _, name := range names {
			env[name] = "x"
		}
		return "w " + ServerVariables(env) + target
	}
	for _, name := range []string{"NODE_OPTIONS", "NODE_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD",
		"LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "ENV", "BASH_FUNC_ls%%", "PERL5OPT", "PERL5LIB", "RUBYOPT",
		"RUBYLIB", "npm_config_registry", "NPM_CONFIG_USERCONFIG", "Npm_Config_Prefix", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
		"PIP_CONFIG_FILE", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "GIT_SSH_COMMAND", "GIT_CONFIG_COUNT",
		"GIT_CONFIG_KEY_0", "GOPROXY", "GOFLAGS", "GONOSUMDB", "PATH", "HOME", "https_proxy", "ALL_PROXY", "SSL_CERT_FILE",
		"NODE_EXTRA_CA_CERTS", "JAVA_TOOL_OPTIONS", "DOTNET_STARTUP_HOOKS", "CARGO_HOME", "XDG_CONFIG_HOME", "DOCKER_HOST",
		"YARN_REGISTRY", "BUNDLE_GEMFILE", "GEM_HOME", "OPENSSL_CONF", "PYTHONWARNINGS", "ld_preload"} {
		decisions(t, "allow * mcp.install * npm:@mcp/*", MCPInstall, []string{detail("npm:@mcp/x"),
			detail("npm:@mcp/x", "API_KEY")}, []string{detail("npm:@mcp/x", name), detail("npm:@mcp/x", "API_KEY", name)})
		decisions(t, "allow * mcp.connect * npx -y @mcp/*", MCPConnect, []string{detail("npx -y @mcp/x", "GITHUB_TOKEN")},
			[]string{detail("npx -y @mcp/x", name)})
		decisions(t, "deny * mcp.install * npm:is-odd", MCPInstall, []string{detail("npm:is-odd@1", name),
			detail("npm:q@npm:is-odd", name), detail("npm:is-odd sh", name)}, []string{detail("npm:is-even", name)})
		decisions(t, "deny * mcp.install * pip:My_Pkg", MCPInstall, []string{detail("pip:my.pkg==1", name)}, nil)
		decisions(t, "deny * mcp.install * git:https://git.test/a", MCPInstall, []string{detail("git:https://GIT.test/a.git#v1", name)}, nil)
		decisions(t, "deny * mcp.connect * curl *", MCPConnect, []string{detail("sh -c 'curl x'", name)}, nil)
		decisions(t, "deny * mcp.connect * "+ServerName(name)+"=*", MCPConnect, []string{detail("npx x", name),
			detail("npx x", "API_KEY", "LD_AUDIT", name, "ZDOTDIR")}, []string{detail("npx x", "API_KEY"), detail("npx x")})
		decisions(t, "allow * mcp.connect * "+ServerName(name)+"= npx *", MCPConnect, []string{detail("npx x", name)},
			[]string{detail("npx x", name, "ZDOTDIR"), detail("npx x")})
	}
	if got := ServerVariables(map[string]string{"GOOGLE_API_KEY": "", "NODE_ENV": "", "PYTHONUNBUFFERED": "", "GIT_TOKEN": "",
		"DEBUG": "", "LANG": "", "OPENAI_API_KEY": "", "DOCKERHUB_TOKEN": "", "PERSONAL_TOKEN": "", "RUST_LOG": ""}); got != "" {
		t.Errorf("these variables make no other server: %q", got)
	}
	decisions(t, "allow * mcp.connect * https://mcp.example.com/*", MCPConnect, []string{"w https://mcp.example.com/x"},
		[]string{"w A= https://mcp.example.com/x"})
}
