package agent

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// IdentityOf returns the git author for a principal of that name. The e-mail address is invalid, unless the name is an
// address.
func IdentityOf(name string) *Identity {
	if mailbox, host, ok := strings.Cut(name, "@"); ok && mailbox != "" && host != "" &&
		!strings.ContainsAny(name, " <>") {
		return &Identity{Name: mailbox, Email: name}
	}
	mailbox := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("._+-", r) {
			return r
		}
		return '-'
	}, name)
	return &Identity{Name: name, Email: mailbox + "@sandlot.invalid"}
}
