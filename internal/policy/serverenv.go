package policy

import (
	"slices"
	"strings"
)

// ServerVariables returns what stands in the detail of an MCP server for its variables: the names of those that make
// another server of its command or its package, each with = and a space behind it. With such a variable a program of
// that name runs other code, or a package comes from another registry. Other variables, such as keys, are no part of it.
func ServerVariables(env map[string]string) string {
	var names []string
	for name := range env {
		if ChoosesProgram(name) {
			names = append(names, ServerName(name)+"= ")
		}
	}
	slices.Sort(names)
	return strings.Join(names, "")
}

// Variables by which programs choose what they run and where they get it. Names are compared in upper case, as npm and
// Windows do not look at the case.
var (
	programVariables = words(`PATH HOME SHELL ENV IFS PS4 PROMPT_COMMAND SHELLOPTS BASHOPTS ZDOTDIR FPATH INPUTRC EDITOR
		VISUAL PAGER MANPAGER BROWSER LESSOPEN LESSCLOSE SSH_ASKPASS SUDO_ASKPASS EXINIT VIMINIT EMACSLOADPATH
		MAKEFLAGS MAKEFILES GNUMAKEFLAGS CC CXX CPP AR LD AS FC CFLAGS CXXFLAGS LDFLAGS
		GCONV_PATH LOCPATH NLSPATH GETCONF_DIR HOSTALIASES MALLOC_CONF
		NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED
		NODE_USE_ENV_PROXY ELECTRON_RUN_AS_NODE NVM_DIR FNM_DIR VOLTA_HOME VIRTUAL_ENV
		GIT_SSH GIT_SSH_COMMAND GIT_SSH_VARIANT GIT_EXEC_PATH GIT_ASKPASS GIT_PROXY_COMMAND GIT_EXTERNAL_DIFF GIT_EDITOR
		GIT_SEQUENCE_EDITOR GIT_PAGER GIT_DIR GIT_COMMON_DIR GIT_WORK_TREE GIT_TEMPLATE_DIR GIT_OBJECT_DIRECTORY
		GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_ALLOW_PROTOCOL GIT_INDEX_FILE GIT_NAMESPACE
		GO111MODULE GOARCH GOAUTH GOBIN GOCACHE GOCACHEPROG GODEBUG GOENV GOEXPERIMENT GOFLAGS GOINSECURE GOMODCACHE
		GONOPROXY GONOSUMDB GOOS GOPATH GOPRIVATE GOPROXY GOROOT GOSUMDB GOTOOLCHAIN GOTOOLDIR GOVCS GOWORK
		RUSTFLAGS RUSTDOCFLAGS PHPRC PHP_INI_SCAN_DIR CLASSPATH JAVA_HOME JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS
		JDK_JAVAC_OPTIONS JAVA_OPTS _JAVA_OPTIONS DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH KUBECONFIG
		CONTAINER_HOST REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CURL_HOME WGETRC SSL_CERT_FILE SSL_CERT_DIR
		USERPROFILE APPDATA LOCALAPPDATA COMSPEC PATHEXT PSMODULEPATH TCLLIBPATH`)
	programFamilies = words(`LD_ DYLD_ BASH_ PYTHON PERL RUBY GEM_ BUNDLE_ NPM_CONFIG_ YARN_ PNPM_ BUN_ COREPACK_ DENO_ PIP_
		PIPX_ UV_ POETRY_ PDM_ CONDA_ MAMBA_ GIT_CONFIG GIT_SSL_ CGO_ CARGO_ RUSTUP_ RUSTC DOTNET_ CORECLR_ COMPLUS_ NUGET_
		MAVEN_ GRADLE_ COMPOSER_ LUA_ R_LIBS R_PROFILE R_ENVIRON R_HOME JULIA_ ERL_ ELIXIR_ GUILE_ TS_NODE_ TSX_ OPENSSL_ XDG_
		NIX_`)
	// harmless are those of the families that change nothing of that.
	harmless = words(`PYTHONUNBUFFERED PYTHONIOENCODING PYTHONDONTWRITEBYTECODE PYTHONUTF8 PYTHONHASHSEED
		PYTHONFAULTHANDLER PYTHONNOUSERSITE PYTHONDEVMODE XDG_CACHE_HOME XDG_RUNTIME_DIR XDG_SESSION_TYPE PIP_QUIET
		PIP_NO_COLOR PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT NPM_CONFIG_LOGLEVEL NPM_CONFIG_YES NPM_CONFIG_FUND
		NPM_CONFIG_AUDIT NPM_CONFIG_UPDATE_NOTIFIER NPM_CONFIG_PROGRESS UV_NO_PROGRESS PERL_UNICODE DOTNET_NOLOGO
		DOTNET_CLI_TELEMETRY_OPTOUT`)
)

func words(text string) []string { return strings.Fields(text) }

// ChoosesProgram reports whether a variable may change what a program runs, or where it gets that from.
func ChoosesProgram(name string) bool {
	name = strings.ToUpper(name)
	if slices.Contains(harmless, name) {
		return false
	}
	return slices.Contains(programVariables, name) || strings.HasSuffix(name, "_PROXY") ||
		slices.ContainsFunc(programFamilies, func(f string) bool { return strings.HasPrefix(name, f) })
}

// cutVariables divides what follows the name of a server: the variables in front, and the command or the package.
func cutVariables(target string) (variables, rest string) {
	rest = target
	for {
		word, more, found := strings.Cut(rest, " ")
		if name, ok := strings.CutSuffix(word, "="); !found || !ok || name == "" || strings.ContainsAny(name, "=:'\"/") {
			return target[:len(target)-len(rest)], rest
		}
		rest = more
	}
}

// withVariables returns the comparable form of a detail of a server that has variables in front of its command or its
// package. Rules that ask or deny also match what it is without them, and those that allow do not.
func withVariables(name, variables string, plain detail) detail {
	add := func(text string) string {
		_, target, _ := strings.Cut(text, " ")
		return name + " " + variables + target
	}
	d := detail{text: add(plain.text), opaque: plain.opaque, parts: append([]string{plain.text}, plain.forms...)}
	for _, form := range plain.forms {
		d.forms = append(d.forms, add(form))
	}
	d.parts = append(d.parts, plain.parts...)
	for _, variable := range strings.Fields(variables) { // a rule about the variable matches in any case
		d.parts = append(d.parts, name+" "+strings.ToUpper(variable), name+" "+strings.ToLower(variable))
	}
	return d
}
