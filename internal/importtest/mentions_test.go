package importtest

import (
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// comments calls do for each comment of Go code, but for generated files and directives.
func comments(t *testing.T, do func(at token.Position, text string)) {
	t.Helper()
	fset := token.NewFileSet()
	for _, name := range files(t) {
		if filepath.Ext(name) != ".go" || strings.Contains(name, "agentv1/") || strings.Contains(name, "testdata/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		var s scanner.Scanner
		s.Init(fset.AddFile(name, -1, len(data)), data, nil, scanner.ScanComments)
		for pos, tok, text := s.Scan(); tok != token.EOF; pos, tok, text = s.Scan() {
			if tok == token.COMMENT && !strings.HasPrefix(text, "//go:") {
				do(fset.Position(pos), text)
			}
		}
	}
}

// TestPathsOfComments: a path in a comment that begins with a folder of the repository, or of internal, is there.
func TestPathsOfComments(t *testing.T) {
	all := files(t)
	there, first := map[string]bool{}, map[string]bool{}
	for _, f := range all {
		for d := f; d != "."; d = path.Dir(d) {
			there[d] = true
		}
		top, _, _ := strings.Cut(f, "/")
		first[top] = strings.Contains(f, "/")
	}
	pattern := regexp.MustCompile(`(^|[\s("` + "`" + `])([a-z]+(?:/[\w.-]*\w)+)`)
	found := 0
	comments(t, func(at token.Position, text string) {
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			p := m[2]
			top, _, _ := strings.Cut(p, "/")
			ours := first[top] || there["internal/"+top] && strings.Count(p, "/") > 1
			if !ours || top == "test" && !strings.Contains(p, ".") {
				continue
			}
			found++
			if !there[p] && !there["internal/"+p] && !slices.Contains(examples, p) {
				t.Errorf("%s: a comment mentions %s, which does not exist", at, p)
			}
		}
	})
	if found < 20 {
		t.Errorf("only %d paths were found", found)
	}
}

// theirs are names that Linux and PostgreSQL gave.
var theirs = strings.Fields("disk_full offline_access fanotify_event_metadata io_uring_setup ipt_entry proc_pid_io " +
	"proc_pid_mountinfo proc_pid_stat query_canceled read_only_sql_transaction request_key seccomp_data sockaddr_in " +
	"too_many_connections undefined_table xt_entry_match xt_entry_target xt_udp")

// TestSettingsOfComments: a name with underscores in a comment stands in the code, and so do settings in back
// quotes and variables of Sandlot.
func TestSettingsOfComments(t *testing.T) {
	have, settings := code(t)
	name := regexp.MustCompile(`(^|[\s("` + "`" + `])([a-z]+(?:_[a-z]+)+|SANDLOT_[A-Z_]*[A-Z])\b`)
	found := 0
	comments(t, func(at token.Position, text string) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			found++
			if w := m[2]; !have[w] && !settings[w] && !slices.Contains(examples, w) && !slices.Contains(theirs, w) {
				t.Errorf("%s: a comment mentions %s, which stands nowhere in the code", at, w)
			}
		}
	})
	if found < 100 {
		t.Errorf("only %d names were found", found)
	}
}

// code returns the words of all that is not a comment of Go or a document, and the settings with their variables.
func code(t *testing.T) (have, settings map[string]bool) {
	t.Helper()
	have, settings = map[string]bool{}, map[string]bool{}
	word := regexp.MustCompile(`\w+`)
	setting := regexp.MustCompile(`(?m)^\t\t\{"([a-z_.]+)", `)
	fset := token.NewFileSet()
	for _, name := range files(t) {
		if strings.HasSuffix(name, ".md") || below(name, "internal/importtest") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if below(name, "internal/config") {
			for _, m := range setting.FindAllStringSubmatch(string(data), -1) {
				settings[m[1]] = true
				settings["SANDLOT_"+strings.ToUpper(strings.ReplaceAll(m[1], ".", "_"))] = true
			}
		}
		add := func(text string) {
			for _, w := range word.FindAllString(text, -1) {
				have[w] = true
			}
		}
		add(path.Base(name))
		if filepath.Ext(name) != ".go" {
			add(string(data))
			continue
		}
		var s scanner.Scanner
		s.Init(fset.AddFile(name, -1, len(data)), data, nil, 0)
		for _, tok, text := s.Scan(); tok != token.EOF; _, tok, text = s.Scan() {
			add(text)
		}
	}
	return have, settings
}
