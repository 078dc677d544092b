package spec

import (
	"net/url"
	"regexp"

	"sandlot/internal/fault"
)

// Limits of a request.
const (
	// MaxValues is how many variables, and how many headers, a server may have.
	MaxValues      = 50
	maxNameLength  = 64
	maxArgs        = 200
	maxArgLength   = 32 << 10
	maxValueLength = 32 << 10
)

var (
	namePattern       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}$`)
	envNamePattern    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerNamePattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
)

// ConnectRequest is a principal's request to connect a server.
type ConnectRequest struct {
	Name    string
	Kind    Kind
	Command string // of a program; empty for a remote server
	Args    []string
	Cwd     string   // the program's working directory; empty: /workspace
	Path    []string // folders that come first in the program's PATH
	URL     string   // of a remote server
	Env     map[string]string
	Headers map[string]string
	Install *Install // how the program was installed; nil: Sandlot did not install it
	Consent Consent  // asks the user for consent; nil: none is needed
}

// Spec returns the part of a request that is stored.
func (a ConnectRequest) Spec() Spec {
	s := Spec{Name: a.Name, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd, Path: a.Path, URL: a.URL,
		Install: a.Install}
	s.SetValues(a.Values())
	return s
}

// Values returns the values of the request's variables and headers.
func (a ConnectRequest) Values() Values {
	return Values{Env: a.Env, Headers: a.Headers, Complete: true}
}

// CheckName returns an error if a server's name is invalid.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fault.Argument("name", "name %q: a name has 1 to %d letters, digits, spaces and . _ @ / -, "+
			"and begins with a letter or digit", ClipName(name), maxNameLength)
	}
	return nil
}

// Check returns an error if a request is invalid. It sets Kind if that is empty.
func (a *ConnectRequest) Check() error {
	if err := CheckName(a.Name); err != nil {
		return err
	}
	if (a.Command == "") == (a.URL == "") {
		return fault.Argument("command",
			"give either a command, which runs in your sandbox, or a url, which is connected to")
	}
	switch {
	case a.Kind == "" && a.URL != "":
		a.Kind = HTTP
	case a.Kind == "":
		a.Kind = Stdio
	case a.Kind == Stdio != (a.Command != ""):
		want := map[bool]string{true: "a command", false: "a url"}[a.Kind == Stdio]
		return fault.Argument("transport", "transport %q goes with %s", a.Kind, want)
	}
	if len(a.Args) > maxArgs {
		return fault.Argument("args", "there are %d args; the limit is %d", len(a.Args), maxArgs)
	}
	for _, s := range append([]string{a.Command, a.Cwd, a.URL}, a.Args...) {
		if len(s) > maxArgLength || hasNUL(s) {
			return fault.Argument("args", "command, cwd, url and each of args have at most %d bytes, and no NUL",
				maxArgLength)
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
		return fault.Argument("url", "url %q: it must begin with https:// or http://, name a host and hold no password",
			ClipName(s))
	}
	return nil
}

func checkValues(env, headers map[string]string) error {
	if len(env) > MaxValues || len(headers) > MaxValues {
		return fault.Argument("env", "at most %d variables and %d headers can be given", MaxValues, MaxValues)
	}
	for k, v := range env {
		if !envNamePattern.MatchString(k) {
			return fault.Argument("env", "env name %q: a name has letters, digits and _, and does not begin with a "+
				"digit",
				ClipName(k))
		}
		if len(v) > maxValueLength || hasNUL(v) {
			return fault.Argument("env", "the value of env %s has over %d bytes, or a NUL in it", k, maxValueLength)
		}
		if err := checkReferences("env", k, v); err != nil {
			return err
		}
	}
	for k, v := range headers {
		if !headerNamePattern.MatchString(k) || len(v) > maxValueLength || HasControl(v) {
			return fault.Argument("headers", "the name or the value of the header %q is not valid in HTTP", ClipName(k))
		}
		if err := checkReferences("headers", k, v); err != nil {
			return err
		}
	}
	return nil
}
