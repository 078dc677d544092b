package policy

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// ServerCommand returns the command of an MCP server for a detail: quoted words, which are no URL, and no line.
func ServerCommand(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = quoteWord(a); i == 0 && words[i] == a && strings.Contains(a, ":") {
			words[i] = "'" + a + "'"
		}
	}
	return strings.Join(words, " ")
}

// Address returns a URL in the form that details have: the scheme and the host in lower case, the host without a final
// dot, the port as a number and without the scheme's own one, with a path, and without what is after #. A text that is
// no URL stays as it is; see parseAddress.
func Address(text string) string {
	if a, ok := parseAddress(text); ok {
		return a.exact
	}
	return text
}

// address is a URL in one form.
type address struct {
	exact string
	forms []string // other spellings of it, for some servers
	loose []string // without the query, without the slash at its end, and with the scheme's own port
}

// parseAddress parses a URL. It returns false for one that different programs may read differently, or not at all.
func parseAddress(text string) (address, bool) {
	u, err := url.Parse(strings.ReplaceAll(strings.TrimSpace(text), " ", "%20"))
	if err != nil || u.Host == "" || u.User != nil {
		return address{}, false
	}
	if u.Host, err = normalHost(u.Host); err != nil || strings.ContainsAny(u.Host, "*?") {
		return address{}, false
	}
	withPort := u.Host
	u.Host = withoutOwnPort(u.Scheme, u.Host)
	if port := ownPorts[strings.ToLower(u.Scheme)]; port != "" && withPort == u.Host && u.Port() == "" {
		withPort += port
	}
	u.Fragment, u.RawFragment, u.ForceQuery = "", "", false
	if u.Path == "" {
		u.Path = "/"
	}
	a := address{exact: u.String()}
	forms, ok := spellings(a.exact)
	if !ok {
		return address{}, false
	}
	a.forms = forms
	for _, form := range append([]string{a.exact}, forms...) {
		file, _, _ := strings.Cut(form, "?")
		a.loose = append(a.loose, file, strings.TrimRight(file, "/"), strings.TrimRight(file, "/")+"/")
	}
	if withPort != u.Host { // a rule may be about any port, or name the port of any scheme
		start := u.Scheme + "://" + u.Host
		for _, form := range append([]string{a.exact}, append(forms, a.loose...)...) {
			if rest, ok := strings.CutPrefix(form, start); ok {
				a.loose = append(a.loose, u.Scheme+"://"+withPort+rest)
			}
		}
	}
	return a, true
}

// ownPorts are the ports that URLs have without saying so.
var ownPorts = map[string]string{"http": ":80", "https": ":443"}

// withoutOwnPort returns host:port without the port if it is the scheme's own.
func withoutOwnPort(scheme, host string) string {
	return strings.TrimSuffix(host, ownPorts[strings.ToLower(scheme)])
}

// isURL reports whether what follows a server's name is a URL, and not a command.
func isURL(target string) bool {
	scheme, _, ok := strings.Cut(target, "://")
	return ok && scheme != "" && !strings.ContainsFunc(scheme, noScheme)
}

// serverDetail returns the comparable form of the detail of an MCP server that is connected or installed.
func serverDetail(kind detailKind, text string) detail {
	name, target, _ := strings.Cut(text, " ")
	variables, rest := cutVariables(target)
	if variables != "" {
		text = name + " " + rest
	}
	of := connectDetail
	if kind == installTarget {
		of = installDetail
	}
	d := of(text)
	if variables == "" {
		return d
	}
	return withVariables(name, variables, d)
}

// connectDetail returns the comparable form of NAME URL, or NAME COMMAND.
func connectDetail(text string) detail {
	name, target, _ := strings.Cut(text, " ")
	if !isURL(target) {
		parts, ok := commandParts(target)
		return detail{text: text, parts: named(name, parts), opaque: !ok}
	}
	a, ok := parseAddress(target)
	if !ok {
		return detail{opaque: true}
	}
	return detail{text: name + " " + a.exact, forms: named(name, a.forms), parts: named(name, lowered(a.loose))}
}

// installDetail returns the comparable form of NAME TYPE:PACKAGE, and of the start command behind it.
func installDetail(text string) detail {
	name, target, _ := strings.Cut(text, " ")
	what, start, _ := strings.Cut(target, " ")
	if text == "" {
		return detail{}
	}
	s, ok := parseSource(what)
	if !ok {
		return detail{opaque: true}
	}
	if start == "" {
		return detail{text: name + " " + s.exact, forms: named(name, s.forms), parts: named(name, lowered(s.loose))}
	}
	d := detail{text: name + " " + s.exact + " " + start}
	for _, form := range s.forms {
		d.forms = append(d.forms, name+" "+form+" "+start)
	}
	for _, form := range lowered(append([]string{s.exact}, append(s.forms, s.loose...)...)) {
		d.parts = append(d.parts, name+" "+form, name+" "+form+" "+start)
	}
	parts, ok := commandParts(start)
	d.parts, d.opaque = append(d.parts, named(name, parts)...), !ok
	return d
}

// named returns texts behind the name of a server.
func named(name string, texts []string) []string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = name + " " + text
	}
	return all
}

// lowered returns texts, each once, and each in lower case too.
func lowered(texts []string) (all []string) {
	for _, text := range texts {
		for _, form := range []string{text, strings.ToLower(text)} {
			if !slices.Contains(all, form) {
				all = append(all, form)
			}
		}
	}
	return all
}

// serverPattern compares details of MCP servers. A rule that asks or denies matches each spelling, in any case of
// letters, and names of Python packages with any separators, wherever in the pattern they are. A rule that allows
// compares word by word, and has to match every spelling: a URL matches URLs only, and a last word * matches all that
// follows.
func serverPattern(pattern string, strict bool) func(detail) bool {
	normal := normalTarget(pattern)
	if !strict {
		name, target, _ := strings.Cut(normal, " ")
		patterns := []string{pattern, normal, name + " " + strings.ToLower(target)}
		if target == "" { // * in front stands for the name, and the case of names of servers matters elsewhere
			patterns = append(patterns, strings.ToLower(pattern))
		}
		kind, address := cutGit(target)
		if forms, ok := spellings(address); ok && isURLPattern(target) {
			for _, form := range forms {
				patterns = append(patterns, name+" "+kind+form)
			}
		}
		plain := plainName(pattern)
		matches := func(text string) bool {
			_, of, _ := strings.Cut(text, " ")
			return slices.ContainsFunc(patterns, func(p string) bool { return glob(p, text, "") }) ||
				strings.HasPrefix(of, "pip:") && glob(plain, plainName(text), "")
		}
		return func(d detail) bool {
			return matches(d.text) || slices.ContainsFunc(d.forms, matches) || slices.ContainsFunc(d.parts, matches)
		}
	}
	wanted := strings.Fields(normal)
	return func(d detail) bool {
		return wordsMatch(wanted, d.text) &&
			!slices.ContainsFunc(d.forms, func(form string) bool { return !wordsMatch(wanted, form) })
	}
}

// normalTarget returns a pattern with its URL or package in the form of details.
func normalTarget(pattern string) string {
	name, target, ok := strings.Cut(pattern, " ")
	if !ok {
		return pattern
	}
	what, start, more := strings.Cut(strings.TrimLeft(target, " \t"), " ")
	switch {
	case strings.HasPrefix(what, "pip:"):
		what = strings.TrimPrefix(what, "pip:")
		end := strings.IndexAny(what, "[=<>!~%")
		if end < 0 {
			end = len(what)
		}
		what = "pip:" + plainName(what[:end]) + what[end:]
	case isURLPattern(what):
		what = normalURL(what)
	}
	if more {
		what += " " + start
	}
	return name + " " + what
}

// unmatchableURL returns why no URL can match the pattern of one; empty: one may.
func unmatchableURL(kind detailKind, pattern string) string {
	_, what, _ := strings.Cut(pattern, " ")
	if !isURLPattern(what) {
		return ""
	}
	_, rest, _ := strings.Cut(what, "://")
	host, _, _ := strings.Cut(rest, "/")
	switch {
	case strings.Contains(host, "@"):
		return "URLs of servers hold no name and no password"
	case kind == connectTarget && strings.Contains(rest, "#"):
		return "URLs are compared without what is after #"
	}
	return ""
}

// isURLPattern reports whether a pattern is that of a URL, or of git:URL. Its scheme may have * and ?.
func isURLPattern(what string) bool {
	_, address := cutGit(what)
	return isURL(strings.NewReplacer("*", "x", "?", "x").Replace(address))
}

// cutGit divides git:URL. Of all else the kind is empty.
func cutGit(what string) (kind, address string) {
	if rest, ok := strings.CutPrefix(what, "git:"); ok {
		return "git:", rest
	}
	return "", what
}

// normalURL returns the pattern of a URL with the scheme, the host and the port in the form of details.
func normalURL(pattern string) string {
	kind, address := cutGit(pattern)
	scheme, rest, _ := strings.Cut(address, "://")
	scheme = strings.ToLower(scheme)
	end := strings.IndexAny(rest, "/#")
	if end < 0 {
		end = len(rest)
	}
	host, file := rest[:end], rest[end:]
	if normal, err := normalHost(host); err == nil {
		host = withoutOwnPort(scheme, normal)
	}
	if !strings.HasPrefix(file, "/") && !strings.ContainsAny(host[len(host)-min(len(host), 1):], "*?") {
		file = "/" + file
	}
	return kind + scheme + "://" + host + file
}

// wordsMatch compares a detail with the words of a rule that allows.
func wordsMatch(wanted []string, text string) bool {
	words := strings.Split(text, " ")
	for i, w := range wanted {
		if w == "*" && i == len(wanted)-1 && i > 0 {
			return len(words) >= i
		}
		if i >= len(words) || !wordMatches(w, words[i]) {
			return false
		}
	}
	return len(words) == len(wanted)
}

// wordMatches compares a word with that of a rule that allows.
func wordMatches(pattern, word string) bool {
	scheme, rest, isURL := strings.Cut(pattern, "://")
	if !isURL {
		return glob(pattern, word, "") && (pattern == "*" || !strings.Contains(word, "://") ||
			strings.Contains(pattern, ":"))
	}
	u, err := url.Parse(word[strings.LastIndex(word[:max(0, strings.Index(word, "://"))], ":")+1:])
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" &&
		path.Clean(u.Path) != strings.TrimSuffix(u.Path, "/") &&
		u.Path != "/" || strings.Contains(u.Path, `\`) {
		return false
	}
	wordScheme, wordRest, _ := strings.Cut(word, "://")
	host, file, hasPath := strings.Cut(rest, "/")
	wordHost, wordFile, _ := strings.Cut(wordRest, "/")
	return scheme == wordScheme && glob(host, wordHost, "/?#@:\\") && (hasPath || wordFile == "") && glob(file,
		wordFile, "")
}
