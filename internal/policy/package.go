package policy

import (
	"regexp"
	"strings"
)

// A package of a registry, as npm and pip read it. Both also take files, folders, URLs, repositories and other names
// for a package: those have no name that a rule could be compared with.
var (
	npmPackage = regexp.MustCompile(`^((?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*)` +
		`(?:@([A-Za-z0-9^~<>=|*+_-][A-Za-z0-9^~<>=|*+_. -]*))?$`)
	pipPackage = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9._,-]+\])?` +
		`((?:(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9._*+!-]+)(?:,(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9._*+!-]+)*)?$`)
	archive = regexp.MustCompile(`(?i)\.(tgz|tbz2?|txz|tlz|tar|tar\.[a-z0-9]+|zip|whl|egg)$`)
	// separators are the same in names of Python packages.
	separators = regexp.MustCompile(`[-_.]+`)
)

// source is what a third-party server is installed from, in one form.
type source struct {
	exact string   // TYPE:PACKAGE with the version, or TYPE:URL
	forms []string // other spellings of a URL
	loose []string // without the version, and other names of the same: what a rule that asks or denies may mean
}

// parseSource parses TYPE:PACKAGE. It returns false for what is no package of a registry, and no address of a
// repository.
func parseSource(text string) (source, bool) {
	kind, name, _ := strings.Cut(text, ":")
	plain := strings.ReplaceAll(name, "%20", " ")
	switch kind {
	case "npm":
		m := npmPackage.FindStringSubmatch(plain)
		if m == nil || archive.MatchString(plain) || archive.MatchString(m[1]) {
			return source{}, false
		}
		return source{exact: text, loose: []string{"npm:" + m[1]}}, true
	case "pip":
		m := pipPackage.FindStringSubmatch(strings.ReplaceAll(plain, " ", ""))
		if m == nil || archive.MatchString(plain) || archive.MatchString(m[1]) {
			return source{}, false
		}
		name := "pip:" + plainName(m[1])
		return source{exact: name + m[2] + m[3], loose: []string{name, name + m[2], name + m[3], text}}, true
	case "git":
		return parseRepository(name)
	}
	return source{}, false
}

// plainName returns the name of a Python package in the form of PyPI.
func plainName(name string) string { return separators.ReplaceAllString(strings.ToLower(name), "-") }

// parseRepository parses the URL of a Git repository, with a branch, tag or commit after #.
func parseRepository(text string) (source, bool) {
	text, ref, _ := strings.Cut(text, "#")
	a, ok := parseAddress(text)
	if !ok {
		return source{}, false
	}
	s := source{exact: "git:" + a.exact}
	if ref != "" {
		s.exact += "#" + ref
	}
	for _, form := range a.forms {
		s.forms = append(s.forms, "git:"+strings.TrimSuffix(form+"#"+ref, "#"))
	}
	for _, form := range append([]string{a.exact}, append(a.forms, a.loose...)...) {
		form = "git:" + form
		s.loose = append(s.loose, form, strings.TrimSuffix(form, ".git"))
		if !strings.HasSuffix(form, ".git") { // a rule may be about NAME.git
			s.loose = append(s.loose, form+".git")
		}
	}
	if ref != "" {
		for _, form := range s.loose {
			s.loose = append(s.loose, form+"#"+ref)
		}
	}
	return s, true
}
