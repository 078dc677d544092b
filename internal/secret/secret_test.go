package secret

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

func TestAValueDoesNotPrintItself(t *testing.T) {
	v := Value("hunter2")
	s := struct {
		Token Value
		Map   map[string]Value
	}{v, map[string]Value{"k": v}}
	texts := map[string]string{}
	for _, f := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%X"} {
		texts[f] = fmt.Sprintf(f, v)
		texts["struct "+f] = fmt.Sprintf(f, s)
		texts["pointer "+f] = fmt.Sprintf(f, &s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	texts["json"] = string(b)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", v, "struct", s)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", v, "struct", s)
	texts["log"] = log.String()
	texts["error"] = fmt.Errorf("with %w and %v", fmt.Errorf("%s", v), v).Error()
	hexed := fmt.Sprintf("%x", string(v))
	for how, text := range texts {
		if strings.Contains(text, "hunter2") || strings.Contains(strings.ToLower(text), hexed) {
			t.Errorf("%s shows the secret: %s", how, text)
		}
	}
	if v.Reveal() != "hunter2" {
		t.Errorf("Reveal() = %q", v.Reveal())
	}
}

func TestMade(t *testing.T) {
	tests := []struct {
		name  string
		make  func() string
		shape *regexp.Regexp
	}{
		{"ID", ID, regexp.MustCompile(`^[a-z2-7]{26}$`)},
		{"NewToken", func() string { return NewToken().Reveal() }, regexp.MustCompile(`^slt_[a-z2-7]{40}$`)},
		{"Bytes", func() string { return hex.EncodeToString(Bytes(32)) }, regexp.MustCompile(`^[0-9a-f]{64}$`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := map[string]bool{}
			for range 1000 {
				s := tt.make()
				if !tt.shape.MatchString(s) {
					t.Fatalf("%q does not match %s", s, tt.shape)
				}
				if seen[s] {
					t.Fatalf("%q came twice", s)
				}
				seen[s] = true
			}
		})
	}
}

func TestHash(t *testing.T) {
	if a, b := Hash("slt_a"), Hash("slt_b"); a == b || len(a) != 64 || strings.Contains(a, "slt_a") {
		t.Errorf("Hash gives %q and %q", a, b)
	}
	if Hash(" slt_a\n") != Hash("slt_a") {
		t.Error("white space around a pasted token changes its hash")
	}
}
