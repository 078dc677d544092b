package image

import (
	"cmp"
	"maps"
	"path"
	"strings"

	"sandlot/internal/agent/wire"
)

// UserBase is the folder in which pip, npm, uv and others install in every sandbox. It is in the
// workspace, so it outlives the sandbox; their caches do not.
const UserBase = workspace + "/.local"

const workspace = "/workspace"

// AgentPrograms is the last folder of PATH. The agent creates programs there that the root file system does
// not have, such as python if there is only python3.
const AgentPrograms = "/var/lib/sandlot/bin"

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultEnv has the default environment variables of a sandbox. A template's own variables override them.
var defaultEnv = map[string]string{
	"PATH": systemPath, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8",
	// pip installs into the sandbox, so it cannot break the machine's Python.
	"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
	"PYTHONDONTWRITEBYTECODE": "1",
	"PYTHONUSERBASE":          UserBase,
	"npm_config_prefix":       UserBase,
	"npm_config_fund":         "false", "npm_config_update_notifier": "false",
	// require finds packages that are installed globally, and those of the root file system.
	"NODE_PATH":          UserBase + "/lib/node_modules:/usr/local/lib/node_modules:/usr/lib/node_modules",
	"GOBIN":              UserBase + "/bin",
	"CARGO_INSTALL_ROOT": UserBase,
	"UV_LINK_MODE":       "copy", // its cache is on another file system
	// Where programs cannot give files away, tar would fail if it tried to. Where they can, the agent removes it.
	"TAR_OPTIONS": wire.NoSameOwner,
}

// cacheEnv has the variables of caches for a template whose home folder is in the workspace: there a file costs three
// times as much, and caches would outlive the sandbox, and fill the workspace. Other homes are in the sandbox's own
// file system.
var cacheEnv = map[string]string{
	"PIP_CACHE_DIR": cacheDir + "/pip", "UV_CACHE_DIR": cacheDir + "/uv", "npm_config_cache": cacheDir + "/npm",
	"GOCACHE": cacheDir + "/go-build", "GOMODCACHE": cacheDir + "/go-mod",
}

// cacheDir is made by the programs that use it, as the user of the sandbox.
const cacheDir = "/tmp/.cache"

// AddDefaultEnv adds defaultEnv to the template's environment, so that installed programs are found and outlive
// the sandbox. It does not change variables that the template sets itself.
func (t *Template) AddDefaultEnv() {
	env := maps.Clone(defaultEnv)
	if base, ok := t.Env["PYTHONUSERBASE"]; ok && base != UserBase { // the template has another folder, or disables it
		maps.DeleteFunc(env, func(_, v string) bool { return strings.HasPrefix(v, UserBase) })
	}
	if !t.User.IsRoot() {
		env["USER"] = t.User.String()
		if t.User.Home != "" {
			env["HOME"] = t.User.Home // where it cannot be used, the agent uses another folder
		}
	}
	home := path.Clean(cmp.Or(t.Env["HOME"], env["HOME"]))
	if home == workspace || strings.HasPrefix(home, workspace+"/") {
		maps.Copy(env, cacheEnv)
	}
	maps.Copy(env, t.Env)
	if env["PYTHONUSERBASE"] == UserBase {
		folders := []string{UserBase + "/bin"}
		if home := env["HOME"]; home != "" && home != "/" {
			folders = append(folders, home+"/.local/bin")
		}
		env["PATH"] = strings.Join(append(folders, wire.FirstPrograms, env["PATH"], AgentPrograms), ":")
	}
	t.Env = env
}
