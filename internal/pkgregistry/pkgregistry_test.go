package pkgregistry

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const secret = "hunter2"

func TestClean(t *testing.T) {
	for raw, want := range map[string]address{
		"https://mirror.test":                 {"https://mirror.test", Host{"mirror.test", 443}, false},
		"https://Mirror.TEST/simple/":         {"https://mirror.test/simple/", Host{"mirror.test", 443}, false},
		" http://mirror.test:8080/a/b \n":     {"http://mirror.test:8080/a/b", Host{"mirror.test", 8080}, false},
		"https://user:hunter2@mirror.test/x":  {"https://mirror.test/x", Host{"mirror.test", 443}, true},
		"https://hunter2@mirror.test:1/":      {"https://mirror.test:1/", Host{"mirror.test", 1}, true},
		"https://mirror.test/x?token=hunter2": {"https://mirror.test/x", Host{"mirror.test", 443}, true},
		"https://mirror.test/x#hunter2":       {"https://mirror.test/x", Host{"mirror.test", 443}, true},
		"https://10.1.2.3/x":                  {"https://10.1.2.3/x", Host{"10.1.2.3", 443}, false},
		"http://[fd00::1]:81/x":               {"http://[fd00::1]:81/x", Host{"fd00::1", 81}, false},
		"http://[fd00::1]":                    {"http://[fd00::1]", Host{"fd00::1", 80}, false},
		"https://mirror/x":                    {"https://mirror/x", Host{"mirror", 443}, false},
		"https://under_score.test/%7Ex/@a+b=c": {"https://under_score.test/%7Ex/@a+b=c", Host{"under_score.test", 443},
			false},
		"https://mirror.test./x": {"https://mirror.test./x", Host{"mirror.test", 443}, false},
	} {
		if got, err := parseAddress(raw); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", raw, got, err, want)
		}
	}
}

// bad are addresses of which none is taken, with a secret in each.
var bad = []string{
	"", "hunter2", "mirror.test/hunter2", "//hunter2@mirror.test", "file:///hunter2", "ssh://hunter2@mirror.test",
	"git+https://hunter2@mirror.test/",
	"https:hunter2", "https://", "https:///hunter2", "https://hunter2@/x", "https://hunter2@mirror.test:0/",
	"https://hunter2@mirror.test:65536/", "https://hunter2@mirror.test:x/",
	"https://hunter2@127.0.0.1/", "https://hunter2@localhost/", "https://hunter2@LOCALHOST.:8/",
	"https://hunter2@x.localhost/", "https://hunter2@[::1]/", "https://hunter2@[::ffff:127.0.0.1]/",
	"https://hunter2@0.0.0.0/",
	"https://hunter2@2130706433/", "https://hunter2@0x7f.1/", "https://hunter2@127.1/", "https://hunter2@017700000001/",
	"https://hunter2@1.2.3.4.5/",
	"https://hunter2@[fe80::1%25eth0]/", "https://hunter2@-x.test/", "https://hunter2@x..test/",
	"https://hunter2@mirror.test\n/", "https://hunter2@mir ror.test/", "https://hunter2@mirrör.test/",
	"https://hunter2@*.test/",
	"https://hunter2@mirror.test/a\nb", "https://hunter2@mirror.test/a;b", "https://hunter2@mirror.test/${HOME}",
	"https://hunter2@mirror.test/a,b", "https://hunter2@mirror.test/a'b", "https://hunter2@mirror.test/$(id)",
	"https://hunter2@" + strings.Repeat("a.", 130) + "test/", "https://hunter2@" + strings.Repeat("a", 64) + ".test/",
}

func TestCleanRefuses(t *testing.T) {
	for _, raw := range bad {
		got, err := parseAddress(raw)
		if err == nil {
			t.Errorf("%q is taken as %+v", raw, got)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the error tells it: %v", raw, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, ok := range []map[string]string{
		nil, {}, {"npm": "https://mirror.test/npm"}, {"npm": "http://10.0.0.1", "pypi": "https://mirror.test/simple",
			"go": "https://mirror.test/go"},
		{"go": "https://a.test,https://b.test|direct"}, {"go": "off"},
	} {
		if err := Check(ok); err != nil {
			t.Errorf("%v: %v", ok, err)
		}
	}
	for _, wrong := range []map[string]string{
		{"cargo": "https://mirror.test"}, {"npm": ""}, {"go": ""}, {"go": ",|"}, {"go": "direct,file:///hunter2"},
		{"npm": "direct"},
		{"npm": "https://user:hunter2@mirror.test"}, {"pypi": "https://mirror.test/?t=hunter2"},
		{"go": "direct,https://hunter2@mirror.test"},
	} {
		if err := Check(wrong); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

var full = Set{
	NPM: "https://mirror.test/npm/", NPMMirror: true, Scopes: map[string]string{"@corp": "http://corp.test:8081/npm",
		"@a": "https://a.test"},
	PyPI: "http://mirror.test/simple", PyPIExtra: []string{"https://one.test/simple", "https://two.test/simple"},
	PyPITrusted: []string{"mirror.test", "two.test:8443"},
	Go:          "https://mirror.test/go|direct", GoSumDB: "off", GoEnv: map[string]string{"GOPRIVATE": "*.corp.test"},
}

func TestFiles(t *testing.T) {
	want := map[string]string{
		"etc/pip.conf": "[global]\nindex-url = http://mirror.test/simple\nextra-index-url =\n    " +
			"https://one.test/simple\n    https://two.test/simple\ntrusted-host =\n    mirror.test\n    " +
			"two.test:8443\n",
		"etc/uv/uv.toml": `allow-insecure-host = ["mirror.test", "two.test:8443"]
[[index]]
url = "https://one.test/simple"
[[index]]
url = "https://two.test/simple"
[[index]]
url = "http://mirror.test/simple"
default = true
`,
		"etc/npmrc": "registry=https://mirror.test/npm/\n@a:registry=https://a.test\n" +
			"@corp:registry=http://corp.test:8081/npm\n",
		"etc/yarnrc": "registry \"https://mirror.test/npm/\"\n",
		".yarnrc.yml": `npmRegistryServer: "https://mirror.test/npm/"
npmScopes:
  "a":
    npmRegistryServer: "https://a.test"
  "corp":
    npmRegistryServer: "http://corp.test:8081/npm"
unsafeHttpWhitelist:
  - "corp.test"
`,
	}
	got := full.Files()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s:\n%s\nwant\n%s", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	for range 20 {
		if !maps.Equal(full.Files(), got) {
			t.Fatal("the files differ from call to call")
		}
	}
	if len(Set{}.Files()) != 0 || len(Set{}.Env()) != 0 {
		t.Errorf("of nothing: %v, %v", Set{}.Files(), Set{}.Env())
	}
}

func TestEnv(t *testing.T) {
	want := map[string]string{"GOPROXY": "https://mirror.test/go|direct", "GOSUMDB": "off", "GOPRIVATE": "*.corp.test",
		"npm_config_globalconfig": "/etc/npmrc", "pnpm_config_npmrc_auth_file": "/etc/npmrc"}
	if got := full.Env(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	full.Env()["GOPRIVATE"] = "changed"
	if full.GoEnv["GOPRIVATE"] != "*.corp.test" {
		t.Error("the map of Env is the Set's own")
	}
	if got := (Set{NPM: "https://default.test"}).Env(); got["pnpm_config_npmrc_auth_file"] != "" {
		t.Errorf("%v, though npm's default is pnpm's", got)
	}
}

func FuzzClean(f *testing.F) {
	for _, raw := range bad {
		f.Add(raw)
	}
	f.Add("https://user:hunter2@mirror.test:8080/a/b%20c?d#e")
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := parseAddress(raw)
		if err != nil {
			return
		}
		if again, err := parseAddress(a.url); err != nil || again.url != a.url || again.host != a.host ||
			again.stripped {
			t.Errorf("%q gives %+v, which gives %+v, %v", raw, a, again, err)
		}
		if strings.ContainsAny(a.url, " \t\r\n\"'`$;,|#?{}\\<>") || a.host.Name == "" || a.host.Port == 0 {
			t.Errorf("%q gives %+v", raw, a)
		}
	})
}

// The tools themselves read the files, where the machine has them.
func TestToolsReadFiles(t *testing.T) {
	s := full
	dir := lay(t, s)
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"pip": {[]string{"PIP_CONFIG_FILE=" + dir + "/etc/pip.conf"},
			[]string{"python3", "-m", "pip", "config", "list"},
			"global.extra-index-url='\\nhttps://one.test/simple\\nhttps://two.test/simple'\n" +
				"global.index-url='http://mirror.test/simple'\n" +
				"global.trusted-host='\\nmirror.test\\ntwo.test:8443'"},
		"npm": {[]string{"npm_config_globalconfig=" + dir + "/etc/npmrc"},
			[]string{"npm", "config", "get", "registry"}, "https://mirror.test/npm/"},
		"npm's scope": {[]string{"npm_config_globalconfig=" + dir + "/etc/npmrc"},
			[]string{"npm", "config", "get", "@corp:registry"}, "http://corp.test:8081/npm"},
		"a user's own": {[]string{"npm_config_globalconfig=" + dir + "/etc/npmrc", "npm_config_userconfig=" +
			write(t, dir, "own", "registry=https://own.test/\n")},
			[]string{"npm", "config", "get", "registry"}, "https://own.test/"},
		"go": {[]string{"GOPROXY=" + s.Env()["GOPROXY"]}, []string{"go", "env", "GOPROXY"},
			"https://mirror.test/go|direct"},
	} {
		t.Run(name, func(t *testing.T) {
			real(t)
			if !found(t, c.args[0]) {
				t.Skip("it is not on this machine")
			}
			out, err := run(t.Context(), c.env, c.args[0], c.args[1:]...)
			if err != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v: %s\nwant %s", err, out, c.want)
			}
		})
	}
}

func TestHost(t *testing.T) {
	if got := (Host{"fd00::1", 443}).String(); got != "[fd00::1]:443" {
		t.Error(got)
	}
	want := []Host{{"a.test", 1}, {"a.test", 2}, {"b.test", 1}}
	b := &builder{hosts: map[Host]bool{want[2]: true, want[0]: true, want[1]: true}}
	if got := b.build().Hosts; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
