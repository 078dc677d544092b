package spec

import (
	"net/url"
	"regexp"

	"sandlot/internal/fault"
)

// Limits of a request.
const (
	// MaxValues is how many variables, and how many headers, a server may have.
	MaxValues   = 50
	maxName     = 64
	maxArgs     = 200
	maxArg      = 32 << 10
	maxEnvValue = 32 << 10
)

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}$`)
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
)

// Ask is a principal's request to connect a server.
type Ask struct {
	Name    string
	Kind    Kind
	Command string
	Args    []string
	Cwd     string
	Path    []string
	URL     string
	Env     map[string]string
	Headers map[string]string
	Install *Install
	Consent Consent
}

// Spec returns the part of a request that is stored.
func (a Ask) Spec() Spec {
	s := Spec{Name: a.Name, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd, Path: a.Path, URL: a.URL,
		Install: a.Install}
	s.SetValues(a.Values())
	return s
}

// Values returns the values of the request's variables and headers.
func (a Ask) Values() Values { return Values{Env: a.Env, Headers: a.Headers, Known: true} }

// wrong returns a fault about one argument of a tool.
func wrong(argument, format string, args ...any) error {
	return fault.New(fault.InvalidParameters, format, args...).With("argument", argument)
}

// CheckName returns an error if a server's name is invalid.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return wrong("name", "name %q: a name has 1 to %d letters, digits, spaces and . _ @ / -, "+
			"and begins with a letter or digit", Clip(name), maxName)
	}
	return nil
}

// Check returns an error if a request is invalid. It sets Kind if that is empty.
func (a *Ask) Check() error {
	if err := CheckName(a.Name); err != nil {
		return err
	}
	if (a.Command == "") == (a.URL == "") {
		return wrong("command", "give either a command, which runs in your sandbox, or a url, which is connected to")
	}
	switch {
	case a.Kind == "" && a.URL != "":
		a.Kind = HTTP
	case a.Kind == "":
		a.Kind = Stdio
	case a.Kind == Stdio != (a.Command != ""):
		want := map[bool]string{true: "a command", false: "a url"}[a.Kind == Stdio]
		return wrong("transport", "transport %q goes with %s", a.Kind, want)
	}
	if len(a.Args) > maxArgs {
		return wrong("args", "there are %d args; at most %d are taken", len(a.Args), maxArgs)
	}
	for _, s := range append([]string{a.Command, a.Cwd, a.URL}, a.Args...) {
		if len(s) > maxArg || hasNUL(s) {
			return wrong("args", "command, cwd, url and each of args have at most %d bytes, and no NUL", maxArg)
		}
	}
	if a.Kind != Stdio {
		if err := checkURL(a.URL); err != nil {
			return err
		}
	}
	return checkValues(a.Env, a.Headers)
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return wrong("url", "url %q: it must begin with https:// or http://, name a host and hold no password", Clip(s))
	}
	return nil
}

func checkValues(env, headers map[string]string) error {
	if len(env) > MaxValues || len(headers) > MaxValues {
		return wrong("env", "at most %d variables and %d headers can be given", MaxValues, MaxValues)
	}
	for k, v := range env {
		if !envForm.MatchString(k) {
			return wrong("env", "env name %q: a name has letters, digits and _, and does not begin with a digit",
				Clip(k))
		}
		if len(v) > maxEnvValue || hasNUL(v) {
			return wrong("env", "the value of env %s has over %d bytes, or a NUL in it", k, maxEnvValue)
		}
		if err := checkReferences("env", k, v); err != nil {
			return err
		}
	}
	for k, v := range headers {
		if !headerForm.MatchString(k) || len(v) > maxEnvValue || HasControl(v) {
			return wrong("headers", "the header %q, or its value, is none that HTTP knows", Clip(k))
		}
		if err := checkReferences("headers", k, v); err != nil {
			return err
		}
	}
	return nil
}
