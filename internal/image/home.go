package image

import (
	"maps"
	"strings"
)

// UserBase is where pip, npm, uv and others install to in every sandbox. It is in
// the workspace, so that it outlives the sandbox; their caches are not.
const UserBase = "/workspace/.local"

// Programs is the last folder of PATH: the agent makes there what a root does not
// have, such as python where it has python3 alone.
const Programs = "/var/lib/sandlot/bin"

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// homeEnv is what makes a sandbox a place to work in, where the template does not
// say otherwise.
var homeEnv = map[string]string{
	"PATH": systemPath, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8",
	// The root is the sandbox's own: pip cannot break the machine's Python.
	"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
	"PYTHONDONTWRITEBYTECODE": "1",
	"PYTHONUSERBASE":          UserBase,
	"npm_config_prefix":       UserBase,
	"npm_config_fund":         "false", "npm_config_update_notifier": "false",
	// What is installed globally can be required, as the root's own can.
	"NODE_PATH":          UserBase + "/lib/node_modules:/usr/local/lib/node_modules:/usr/lib/node_modules",
	"GOBIN":              UserBase + "/bin",
	"CARGO_INSTALL_ROOT": UserBase,
	"UV_LINK_MODE":       "copy", // its cache is on another file system
}

// Furnish adds what makes a template's sandboxes a place to work in: what is
// installed there is found, and is kept. What the template sets itself stays.
func (t *Template) Furnish() {
	env := maps.Clone(homeEnv)
	if base, ok := t.Env["PYTHONUSERBASE"]; ok && base != UserBase { // it has a place of its own, or none
		maps.DeleteFunc(env, func(_, v string) bool { return strings.HasPrefix(v, UserBase) })
	}
	maps.Copy(env, t.Env)
	if env["PYTHONUSERBASE"] == UserBase {
		first := []string{UserBase + "/bin"}
		if home := env["HOME"]; home != "" && home != "/" {
			first = append(first, home+"/.local/bin")
		}
		env["PATH"] = strings.Join(append(first, env["PATH"], Programs), ":")
	}
	t.Env = env
}
