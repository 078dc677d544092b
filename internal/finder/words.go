package finder

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSplit is how many bytes of a text are split.
const maxSplit = 4 << 10

// split returns the words of a name or text, in small letters and with spaces between them. A word ends where letters
// and digits end, and where a small letter is followed by a capital: createIssue is create issue, HTTPServer http
// server. The whole of a name with capitals is a word too.
func split(text string) string {
	var b strings.Builder
	all := []rune(clipBytes(text, maxSplit))
	for i, r := range all {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r) {
			b.WriteByte(' ')
			continue
		}
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(all[i-1]) ||
			unicode.IsUpper(all[i-1]) && i+1 < len(all) && unicode.IsLower(all[i+1])) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

const (
	// maxQueryWords and maxWordBytes bound what of a query counts.
	maxQueryWords, maxWordBytes = 24, 64
	// minPrefix is how many letters a word has of which it is enough that another begins with it.
	minPrefix = 2
)

// matchQuery returns the query of FTS5 for a client's text: one of its words, or the beginning of one, has to be there.
// The client's text has no other meaning in it: words have letters and digits alone. Empty: the text has no words.
func matchQuery(text string) string {
	words := strings.Fields(split(text))
	var all []string
	for _, w := range words {
		term := `"` + clipBytes(w, maxWordBytes) + `"`
		if utf8.RuneCountInString(w) >= minPrefix {
			term += "*"
		}
		if !slices.Contains(all, term) && len(all) < maxQueryWords {
			all = append(all, term)
		}
	}
	return strings.Join(all, " OR ")
}

// clipBytes returns the beginning of a text of at most n bytes, which is valid UTF-8.
func clipBytes(text string, n int) string {
	text = strings.ToValidUTF8(text, " ")
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// maxLine is how many bytes the line has that says what something does.
const maxLine = 120

// firstLine returns the first sentence of a description, on one line.
func firstLine(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[external:") { // the server stands beside it
		if _, rest, ok := strings.Cut(text, "]"); ok {
			text = strings.TrimSpace(rest)
		}
	}
	text, _, _ = strings.Cut(text, "\n")
	text = strings.Join(strings.Fields(text), " ")
	if i := strings.Index(text, ". "); i > 20 {
		text = text[:i+1]
	}
	if len(text) > maxLine {
		text = strings.TrimSpace(clipBytes(text, maxLine)) + "…"
	}
	return text
}
