package session

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"sandlot/internal/fault"
)

// Limits of a session's variables: their number, and the size of all names and values as they are given, in bytes.
const (
	maxVariables     = 100
	maxVariableBytes = 64 << 10
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// checkVariables returns a fault, without a value, if a new session cannot have the variables.
func checkVariables(env map[string]string) error {
	total := 0
	for name, value := range env {
		switch total += len(name) + len(value); {
		case !variableName.MatchString(name):
			return fault.Argument("env", "a variable of a session has a name of 1 to 128 letters, digits and _, which "+
				"does not begin with a digit")
		case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
			return fault.Argument("env", "the variable %s is not text (UTF-8) without NUL", name)
		}
	}
	if len(env) > maxVariables || total > maxVariableBytes {
		return fault.Argument("env", "a session has at most %d variables, with at most %d bytes together", maxVariables,
			maxVariableBytes)
	}
	return nil
}
