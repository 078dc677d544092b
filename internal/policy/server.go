package policy

import (
	"net/url"
	"path"
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

// serverPattern compares details of MCP servers. A rule that allows compares word by word: a URL matches URLs
// only, and a last word * matches all that follows.
func serverPattern(pattern string, strict bool) func(detail) bool {
	if !strict {
		return func(d detail) bool {
			parts := strings.SplitN(d.text, " ", 3)
			if glob(pattern, d.text, "") || glob(pattern, strings.Join(parts[:min(2, len(parts))], " "), "") {
				return true
			}
			name, target, _ := strings.Cut(d.text, " ")
			for _, part := range commandParts(target) { // of a line for a shell
				if glob(pattern, name+" "+part, "") {
					return true
				}
			}
			return false
		}
	}
	wanted := strings.Fields(pattern)
	return func(d detail) bool {
		words := strings.Split(d.text, " ")
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
