package expand

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const hostile = "a\nb  c $Y `touch x` \\$ \"q\" 'r' $(id) * ~ \r\n"

var env = map[string]string{"X": hostile, "E": "", "N": "plain", "PATH": os.Getenv("PATH"), "MSG": "s3cret"}

func TestValue(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"' \" ~ * {a,b} # %X%", "' \" ~ * {a,b} # %X%"},
		{"$N", "plain"},
		{"${N}", "plain"},
		{"$N-$N_", "plain-"},
		{"${N}_", "plain_"},
		{"'$N' \"$N\"", "'plain' \"plain\""},
		{"$X", hostile},
		{"{\"token\": \"$N\"}", "{\"token\": \"plain\"}"},
		{"<$X>", "<" + hostile + ">"},
		{"$NONE", ""},
		{"a${NONE}b", "ab"},
		{"${NONE:-d}", "d"},
		{"${E:-d}", "d"},
		{"${E-d}", ""},
		{"${N:-d}", "plain"},
		{"${NONE:-$X}", hostile},
		{"${NONE:-a b  *}", "a b  *"},
		{"${NONE:-${E:-${N}}}", "plain"},
		{"${NONE:-$(printf %s \")\")}", ")"},
		{"${NONE:-}", ""},
		{"${N:+alt}", "alt"},
		{"${E:+alt}", ""},
		{"${E+alt}", "alt"},
		{"${N:?must be set}", "plain"},
		{"}$N}", "}plain}"},
		{"\\$N", "$N"},
		{"\\\\$N", "\\plain"},
		{"C:\\dir", "C:\\dir"},
		{"\\`date\\`", "`date`"},
		{"é$N€", "éplain€"},
		{"$N[0]", "plain[0]"},
		{"$(echo hi)", "hi"},
		{"$(printf 'a\\n\\n b \\n\\n\\n')", "a\n\n b "},
		{"<$(printf 'a b  c')>", "<a b  c>"},
		{"$(printf '%s' \"$X\")", strings.TrimRight(hostile, "\n")},
		{"$(echo $(echo $(echo deep)))", "deep"},
		{"$(echo ')' '(' \")\")", ") ( )"},
		{"$(case a in a) echo one;; esac)", "one"},
		{"$(echo '$N')", "$N"},
		{"$(true)", ""},
		{"$(echo $PATH)", env["PATH"]},
		{"$(echo a # b\n)", "a"},
		{"é\\\n€$(echo é)$(echo x)", "é€éx"},
		{"two\nlines$(echo \\\n y)\n", "two\nlinesy\n"},
		{"Bearer $(printf %s $MSG)", "Bearer s3cret"},
	} {
		got, err := Value(t.Context(), tt.text, env)
		if err != nil || got != tt.want {
			t.Errorf("%q: %q, %v, want %q", tt.text, got, err, tt.want)
		}
	}
}

func TestWrong(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{"$", "stands alone"},
		{"a $ b", "stands alone"},
		{"100$", "stands alone"},
		{"$\"x\"", "stands alone"},
		{"$'x'", "stands alone"},
		{"${NONE:-5$}", "stands alone"},
		{"$5", "only $VAR"},
		{"$$", "only $VAR"},
		{"$?", "only $VAR"},
		{"${N:=d}", "only $VAR"},
		{"${!N}", "only $VAR"},
		{"${#N}", "only $VAR"},
		{"${N%x}", "only $VAR"},
		{"${N/a/b}", "only $VAR"},
		{"${N:1:2}", "only $VAR"},
		{"${N@Q}", "only $VAR"},
		{"${N[0]}", "only $VAR"},
		{"${NONE:-${N%x}}", "only $VAR"},
		{"$((1+2))", "not known"},
		{"$[1]", "not known"},
		{"`date`", "$(command)"},
		{"${", "not complete"},
		{"${N", "not complete"},
		{"$(", "not complete"},
		{"$(echo", "not complete"},
		{"${}", "not complete"},
		{"\xff$N", "UTF-8"},
		{"a\x00$N", "NUL"},
		{"a\r\n$N", "carriage return"},
		{"${NONE:?}", "the variable NONE is not set"},
		{"${NONE:?say it in the file}", "the variable NONE is not set: say it in the file"},
		{"${NONE:?$MSG}", "the variable NONE is not set"},
		{"${E:?empty}", "the variable E is not set: empty"},
		{"$(exit 7)", "exit status 7"},
		{"$(echo $MSG; echo $MSG >&2; exit 1)", "exit status 1"},
		{"$(no-such-program-s3cret)", "exit status 127"},
		{"$(kill -9 $$)", "failed"},
		{"$(echo ${NONE:?$MSG})", "failed"},
		{"${NONE:-$(false)}", "failed"},
		{"$(yes s3cret)", "more than 64 KiB"},
		{"$(printf 'a\\000b')", "NUL"},
	} {
		got, err := Value(t.Context(), tt.text, env)
		if err == nil || got != "" || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %q, %v, want an error that says %q", tt.text, got, err, tt.says)
			continue
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: the error tells a value: %v", tt.text, err)
		}
	}
}

// What a variable holds is put in, and never run.
func TestNothingIsRun(t *testing.T) {
	dir := t.TempDir()
	bait := filepath.Join(dir, "ran")
	e := map[string]string{"X": "$(touch " + bait + ") `touch " + bait + "`; touch " + bait, "PATH": os.Getenv("PATH")}
	for _, text := range []string{"$X", "${X}", "${NO:-$X}", "'$X'", "$(printf %s \"$X\")", "${X:?$X}", "${X:+$X}"} {
		if _, err := Value(t.Context(), text, e); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := os.Stat(bait); err == nil {
		t.Error("a value was run")
	}
}

// A command has the given variables alone, and the branch not taken is not run.
func TestCommands(t *testing.T) {
	t.Setenv("EXPAND_TEST_OUTER", "seen")
	if got, err := Value(t.Context(), "<$(echo $EXPAND_TEST_OUTER)>", env); err != nil || got != "<>" {
		t.Errorf("%q, %v", got, err)
	}
	bait := filepath.Join(t.TempDir(), "ran")
	if _, err := Value(t.Context(), "${N:-$(touch "+bait+")}", env); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(bait); err == nil {
		t.Error("the default of a set variable was run")
	}
}

// The whole group of a command that hangs ends, also one that left a child.
func TestTimeLimit(t *testing.T) {
	old := commandTimeout
	commandTimeout = 200 * time.Millisecond
	defer func() { commandTimeout = old }()
	for _, text := range []string{"$(sleep 60)", "$(sleep 60 & sleep 60)", "$(trap '' TERM; sleep 60)"} {
		start := time.Now()
		_, err := Value(t.Context(), text, env)
		if err == nil || !strings.Contains(err.Error(), "did not end within") {
			t.Errorf("%q: %v", text, err)
		}
		if took := time.Since(start); took > 45*time.Second {
			t.Errorf("%q took %s", text, took)
		}
	}
	start := time.Now()
	if _, err := Value(t.Context(), "$(sleep 60 & echo x)", env); err == nil {
		t.Error("a program that was left behind holds the output, and that is no error")
	} else if time.Since(start) > 45*time.Second {
		t.Errorf("it took %s: %v", time.Since(start), err)
	}
}

// What may be another's text runs nothing and learns what it may, nothing else.
func TestUntrustedText(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	env := map[string]string{"A": "a", "SECRET": "s3cret"}
	may := func(name string) error {
		if name == "SECRET" {
			return errors.New("not SECRET")
		}
		return nil
	}
	for text, want := range map[string]string{"$A-${A:+b}${NONE:-c}": "a-bc", `\$(x) \$A`: "$(x) $A",
		"plain": "plain"} {
		if got, err := Text(t.Context(), text, Options{Env: env, Allow: may}); got != want || err != nil {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"$(touch " + ran + ")", "${A:-$(touch " + ran + ")}", "${NONE:-x$(touch " + ran +
		")}", "${NONE:-${NONE:-$(touch " + ran + ")}}",
		"$SECRET", "${SECRET:-x}", "${A:-$SECRET}", "${SECRET:+x}", "${SECRET:?x}", "`touch " + ran + "`",
		"$((SECRET))", "${!SECRET}", "${#SECRET}"} {
		if got, err := Text(t.Context(), text, Options{Env: env, Allow: may}); got != "" || err == nil {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program ran")
	}
}

// For a program elsewhere, pwd alone is its folder, and runs nothing here. In a command it is that of this process.
func TestFolder(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PATH": os.Getenv("PATH"), "PWD": here}
	for text, want := range map[string]string{"$(pwd)": "/workspace", "$( pwd )/a:$(pwd -P)": "/workspace/a:/workspace",
		"$PWD/a": "/workspace/a", "${PWD}": "/workspace", "${NONE:-$(pwd)}": "/workspace", "${NONE:-$PWD}": "/workspace",
		`\$(pwd)`: "$(pwd)"} {
		none := func(name string) error { return errors.New("not " + name) }
		if strings.Contains(text, "NONE") {
			none = nil
		}
		if got, err := Text(t.Context(), text, Options{Env: env, Allow: none, Folder: "/workspace"}); got != want ||
			err != nil {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"$(pwd; touch x)", "$(pwd > x)", "$(A=1 pwd)", "$(pwd &)", "$(! pwd)", "$(pwd $A)",
		"$(pwd | sh)", "$(pwd $(x))"} {
		if got, err := Text(t.Context(), text, Options{Env: env, Folder: "/workspace"}); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
	for text, want := range map[string]string{"$(echo $(pwd))": here, "$(cd / && pwd)": "/", "$(pwd)": "/workspace",
		"$(echo $PWD)": here} {
		o := Options{Env: env, Commands: true, Folder: "/workspace"}
		if got, err := Text(t.Context(), text, o); got != want || err != nil {
			t.Errorf("%s with commands: %q, %v; want %q", text, got, err, want)
		}
	}
	if got, err := Value(t.Context(), "$(pwd)", env); got != here || err != nil {
		t.Errorf("in the folder of this process: %q, %v", got, err)
	}
}
