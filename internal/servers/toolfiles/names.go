package toolfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"unicode"

	"sandlot/internal/fault"
)

// maxName bounds an identifier, in bytes: it is the name of a file, too.
const maxName = 60

// keywords are Python's. functionWords are names that functions of a module cannot have: JavaScript's words too,
// `then`, which would make a module a thenable for import(), `aio`, which is the module's own, and README.md's.
var (
	keywords = wordSet(`False None True and as assert async await break class continue def del elif else except finally
		for from global if import in is lambda nonlocal not or pass raise return try while with yield`)
	functionWords = wordSet(`arguments case catch const debugger default delete do enum eval export exports extends
		false function globalThis implements instanceof interface let module new null package private protected public
		require static super switch this throw true typeof undefined var void NaN Infinity then aio TYPE_CHECKING
		annotations readme`)
)

// reservedModules are what else the folder and the package have, in lower case.
var reservedModules = wordSet(`python mcp mcp_tools socket readme index binary link toolerror call search`)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// stable has the letters beside ASCII that Python, JavaScript and file systems take as they are: each is one character
// in every normal form of Unicode that these use.
var stable = &unicode.RangeTable{R16: []unicode.Range16{
	{Lo: 0xC0, Hi: 0xD6, Stride: 1}, {Lo: 0xD8, Hi: 0xF6, Stride: 1}, {Lo: 0xF8, Hi: 0x131, Stride: 1},
	{Lo: 0x391, Hi: 0x3A1, Stride: 1}, {Lo: 0x3A3, Hi: 0x3C9, Stride: 1}, {Lo: 0x400, Hi: 0x45F, Stride: 1},
	{Lo: 0x3041, Hi: 0x3096, Stride: 1}, {Lo: 0x30A1, Hi: 0x30FA, Stride: 1}, {Lo: 0x4E00, Hi: 0x9FA5, Stride: 1},
	{Lo: 0xAC00, Hi: 0xD7A3, Stride: 1}}}

// identifier returns a name of Python and JavaScript that is as much like a text as can be. It does not begin with "_".
func identifier(text string, reserved map[string]bool) string {
	made := &strings.Builder{}
	for _, r := range text {
		ascii := r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
		if !ascii && !unicode.Is(stable, r) {
			r = '_'
		}
		if made.Len()+len(string(r)) > maxName {
			break
		}
		made.WriteRune(r)
	}
	name := made.String()
	switch {
	case strings.Trim(name, "_") == "":
		name = "x_" + hash(text)
	case name[0] == '_' || name[0] >= '0' && name[0] <= '9':
		name = "x" + name
	}
	if reserved[name] || reserved[strings.ToLower(name)] || keywords[name] {
		name += "_"
	}
	return name
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:3])
}

// identifiers returns a name for each text, no two the same, also where upper and lower case are. A name that is its
// text keeps it, whatever the other texts are; so a name changes its meaning only if it has to.
func identifiers(texts []string, reserved map[string]bool) []string {
	made, used := make([]string, len(texts)), map[string]bool{}
	for _, exact := range []bool{true, false} {
		for i, text := range texts {
			name := identifier(text, reserved)
			if made[i] != "" || exact && name != text {
				continue
			}
			for n := 0; used[strings.ToLower(name)]; n++ {
				base := strings.TrimRight(identifier(text, reserved), "_")
				name = base + "_" + hash(text+strings.Repeat("'", n))
			}
			made[i], used[strings.ToLower(name)] = name, true
		}
	}
	return made
}

// modules returns the names of the modules of servers with these names.
func modules(names []string) []string {
	reserved := maps.Clone(functionWords)
	maps.Copy(reserved, reservedModules)
	return identifiers(names, reserved)
}

// clean makes a text one that can stand in a file: UTF-8 without control characters, and without those that change the
// direction or cannot be seen. It bounds its bytes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\r\n", "\n"), "\uFFFD")
	cut := len(text) > limit
	if cut {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) || r == '\r' || r == '\v' || r == '\f' || r == 0x85:
			return '\n'
		case fault.Invisible(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, text))
	if cut {
		text += " …"
	}
	return text
}

// line makes a text one line.
func line(text string, limit int) string {
	text = strings.Join(strings.Fields(clean(text, 4*limit)), " ")
	if first, _, found := strings.Cut(text, ". "); found && len(first) > 20 && len(first) < limit {
		return first + "."
	}
	if len(text) > limit {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:limit], "")) + " …"
	}
	return text
}

// oneLine makes a text one line with all of its sentences.
func oneLine(text string, limit int) string {
	return strings.Join(strings.Fields(clean(text, limit)), " ")
}

// sortedKeys returns keys in an order that does not change.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
