package image

import (
	"reflect"
	"strings"
	"testing"
)

const (
	passwd = `root:x:0:0:root:/root:/bin/bash
# app:x:7:7::/none:/bin/sh
broken
app:x:1000:1001:App,,,:/home/app:/bin/sh
toor:x:0:5::/root:/bin/sh
1234:x:77:78::/home/digits:/bin/sh
large:x:4294967295:1::/home/large:/bin/sh
odd name:x:5:5::relative:/bin/sh
evil:x:6:6::/home/../etc:/bin/sh
colon:x:8:8::/a` + "\x01" + `b:/bin/sh
`
	group = `root:x:0:
app:x:1001:
docker:x:999:other,app
wheel:x:10:app,app
again:x:999:app
large:x:4294967295:app
main:x:1001:app
`
)

func TestResolveUser(t *testing.T) {
	app := User{UID: 1000, GID: 1001, Groups: []uint32{999, 10}, Name: "app", Home: "/home/app"}
	alone := app
	alone.Groups = nil
	withGroup := func(gid uint32) User { u := alone; u.GID = gid; return u }
	for setting, want := range map[string]User{
		"": {}, "root": {}, "0": {}, "0:0": {}, "root:docker": {}, "toor": {},
		"app": app, "1000": app, "app:docker": withGroup(999), "1000:10": withGroup(10), "app:4242": withGroup(4242),
		"2000": {UID: 2000}, "2000:3000": {UID: 2000, GID: 3000}, "2000:app": {UID: 2000, GID: 1001},
		"1234":       {UID: 77, GID: 78, Name: "1234", Home: "/home/digits"},
		"odd name":   {UID: 5, GID: 5},
		"evil":       {UID: 6, GID: 6, Name: "evil"},
		"colon":      {UID: 8, GID: 8, Name: "colon"},
		"2147483647": {UID: 2147483647},
	} {
		if got, err := ResolveUser(setting, passwd, group); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", setting, got, err, want)
		}
	}
	for _, setting := range []string{"nobody", "app:nogroup", ":", ":app", "app:", "4294967295", "4294967296", "-1",
		"+5",
		"2147483648", "large", "1000:4294967295", "app:-1", strings.Repeat("9", 1000), "app\n:x"} {
		if got, err := ResolveUser(setting, passwd, group); err == nil {
			t.Errorf("%.40q: %+v", setting, got)
		}
	}
	if _, err := ResolveUser("app", strings.Repeat("x", maxAccountFile+1), ""); err == nil {
		t.Error("a file that is too large was read")
	}
	many := strings.Builder{}
	for range 20_000 {
		many.WriteString("g:x:" + strings.Repeat("1", 1+many.Len()%7) + many.String()[:min(many.Len(), 2)] + "9:app\n")
	}
	if got, err := ResolveUser("app", passwd, many.String()[:min(many.Len(), maxAccountFile)]); err != nil ||
		len(got.Groups) > maxGroups {
		t.Errorf("%d groups, %v", len(got.Groups), err)
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("app", passwd, group)
	f.Add("1000:10", passwd, group)
	f.Add("x:y", ":::::\n", "::::\n")
	f.Fuzz(func(t *testing.T, setting, passwd, group string) {
		u, err := ResolveUser(setting, passwd, group)
		if err != nil {
			return
		}
		if u.UID > maxID || u.GID > maxID || len(u.Groups) > maxGroups || u.Name != "" && !validName(u.Name) ||
			u.Home != "" && !validHome(u.Home) || u.IsRoot() && !reflect.DeepEqual(u, User{}) {
			t.Errorf("%q: %+v", setting, u)
		}
	})
}

func TestAsRoot(t *testing.T) {
	template := Template{User: User{UID: 1000, Name: "app", Home: "/home/app"}, Env: map[string]string{"A": "b"}}
	template.AddDefaultEnv()
	if template.Env["HOME"] != "/home/app" || template.Env["USER"] != "app" {
		t.Errorf("environment %v", template.Env)
	}
	root := template.AsRoot()
	if !root.User.IsRoot() || root.Env["HOME"] != "/root" || root.Env["USER"] != "root" || root.Env["A"] != "b" ||
		template.Env["HOME"] != "/home/app" || template.User.UID != 1000 {
		t.Errorf("as root: %+v; it was %+v", root, template)
	}
	if same := root.AsRoot(); same != root {
		t.Error("a template of root's was copied")
	}
}
