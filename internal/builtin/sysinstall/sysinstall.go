// Package sysinstall finds out that a command tries to install something into the system's folders, misses a package, or
// may not do what root can. Pure functions.
package sysinstall

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// installCommand matches a package manager's command that changes the system: at the beginning of a
	// line, or after what may precede a command there.
	installCommand = regexp.MustCompile(`(?m)(?:^|[;&|({]|\b(?:sudo|then|do|else|exec|env|time|xargs)\b)[ \t]*` +
		`(?:-[^ \t]+[ \t]+|[A-Za-z_][A-Za-z0-9_]*=[^ \t]*[ \t]+)*` +
		`(?:sudo[ \t]+(?:-[^ \t]+[ \t]+)*)?(?:/usr)?(?:/s?bin/)?` +
		`(?:apt-get|apt|aptitude|yum|dnf|microdnf|zypper|apk|pacman|dpkg|rpm)(?:[ \t]+-[^ \t;&|]+)*[ \t]+` +
		`(?:(?:install|reinstall|add|update|upgrade|full-upgrade|dist-upgrade|remove|purge|groupinstall|build-dep)\b|` +
		`(?:-i|--install|-U|-S[a-z]*|-ivh|-Uvh)\b|[^ \t;&|]+\.(?:deb|rpm|apk)\b)`)
	// installOption matches dpkg -i and similar commands, in which an option says what to do.
	installOption = regexp.MustCompile(`(?m)(?:^|[;&|({]|\bsudo\b)[ \t]*(?:sudo[ \t]+)?` +
		`(?:dpkg[ \t]+(?:-i|--install|-r|-P)|rpm[ \t]+-[iUe][a-z]*|pacman[ \t]+-[SU][a-z]*)\b`)
	// installRefused matches the messages of package managers that are missing, or may not write.
	installRefused = regexp.MustCompile(`/var/lib/dpkg/lock|/var/lib/apt/lists|dpkg: error: |E: Unable to locate package |` +
		`ERROR: Unable to lock database|` +
		`(?:apt-get|apt|aptitude|yum|dnf|microdnf|zypper|apk|pacman|dpkg|rpm): (?:command )?not found`)
)

// IsReadOnly reports whether a command, to judge by its output, found the system's folders read-only.
func IsReadOnly(outputs ...string) bool {
	return slices.ContainsFunc(outputs, func(o string) bool { return strings.Contains(o, "Read-only file system") })
}

// notPermitted matches what programs say that may not give files to other users, or become them.
var notPermitted = regexp.MustCompile(`(?m)^(?:` +
	`(?:chown|chgrp|cp|tar|install)\b[^\n]*: (?:changing (?:owner|group)[^\n]*|failed to preserve ownership[^\n]*|` +
	`[Cc]annot change (?:ownership|owner)[^\n]*): Operation not permitted[^\n]*|` +
	`rsync: [^\n]*chown [^\n]*failed: Operation not permitted[^\n]*|` +
	`(?:su|runuser|setpriv|sudo|gosu|su-exec|error)\b[^\n]*(?:cannot set|set(?:res)?[ug]id|setgroups|failed switching)[^\n]*: ` +
	`[Oo]peration not permitted[^\n]*|` +
	`initdb: error: cannot be run as root)`)

// NotPermitted returns the line of the output in which a program says that it may not give a file to another user, or
// become one; empty: there is none.
func NotPermitted(outputs ...string) string {
	for _, o := range outputs {
		if !strings.Contains(o, "peration not permitted") && !strings.Contains(o, "cannot be run as root") {
			continue // most outputs, of which some are long
		}
		if line := notPermitted.FindString(o); line != "" {
			return line[:min(len(line), 200)]
		}
	}
	return ""
}

// missingModule matches what Python and Node say of a package that is not there. A relative path is none.
var missingModule = regexp.MustCompile(`No module named '?([A-Za-z_][A-Za-z0-9_]*)|` +
	`Cannot find (?:module|package) '((?:@[^/' ]+/)?[^./@' ][^/' ]*)`)

// distributions has the packages that are imported by another name than they are installed by.
var distributions = map[string]string{"sklearn": "scikit-learn", "docx": "python-docx", "pptx": "python-pptx",
	"PIL": "pillow", "bs4": "beautifulsoup4"}

// MissingModule returns the package that Python or Node did not find, to judge by the output, by the name by which it is
// installed; empty: they miss none.
func MissingModule(outputs ...string) string {
	for _, o := range outputs {
		if !strings.Contains(o, "No module named") && !strings.Contains(o, "Cannot find ") {
			continue // most outputs, of which some are long
		}
		if m := missingModule.FindStringSubmatch(o); m != nil {
			name := m[1] + m[2]
			if d := distributions[name]; d != "" {
				return d
			}
			return name
		}
	}
	return ""
}

// Tried reports whether a command, to judge by itself or by its output, tried to install
// something into the root file system.
func Tried(command string, outputs ...string) bool {
	if installCommand.MatchString(command) || installOption.MatchString(command) {
		return true
	}
	for _, o := range outputs {
		if installRefused.MatchString(o) {
			return true
		}
	}
	return false
}
