package spec

import (
	"errors"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// A command's variables get secrets in place of references, each looked up once, and no more than there is room for.
func TestRevealEnv(t *testing.T) {
	asked := 0
	reveal := func(name string) (string, error) {
		asked++
		switch name {
		case "KEY":
			return "hunter2", nil
		case "ODD":
			return "${secret:KEY}", nil
		case "LARGE":
			return strings.Repeat("x", 60<<10), nil
		}
		return "", errors.New("no " + name)
	}
	plain := map[string]string{"A": "$HOME ${secret"}
	if got, err := RevealEnv(plain, reveal); err != nil || got["A"] != plain["A"] || asked != 0 {
		t.Errorf("without references: %v, %v", got, err)
	}
	given := map[string]string{"A": "a ${secret:KEY} b${secret:KEY}", "B": "${secret:ODD}", "C": "c"}
	got, err := RevealEnv(given, reveal)
	if err != nil || got["A"] != "a hunter2 bhunter2" || got["B"] != "${secret:KEY}" || got["C"] != "c" || asked != 2 {
		t.Errorf("%v, %v, looked up %d times", got, err, asked)
	}
	if given["A"] != "a ${secret:KEY} b${secret:KEY}" {
		t.Error("what the caller has was changed")
	}
	many := map[string]string{}
	for c := range 40 {
		many["V"+string(rune('A'+c))] = "${secret:LARGE}"
	}
	for what, env := range map[string]map[string]string{"no name": {"A": "${secret:}"}, "no end": {"A": "${secret:KEY"},
		"no such character": {"A": "${secret:A-B}"}, "twice a large one": {"A": "${secret:LARGE}${secret:LARGE}"},
		"many large ones": many} {
		if got, err := RevealEnv(env, reveal); !fault.Is(err, fault.InvalidParameters) || got != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := RevealEnv(map[string]string{"A": "${secret:NONE}"}, reveal); err == nil || got != nil {
		t.Errorf("one that is missing: %v, %v", got, err)
	}
}
