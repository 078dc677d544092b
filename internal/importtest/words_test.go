package importtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	update = flag.Bool("update", false, "bring words.txt down to what is true now")
	accept = flag.Bool("accept", false, "bring words.txt to what is true now, also where that is more")
)

// A word is one that code had for what its field has a word for. It is not the name
// of a type, function, method, field, or variable of a package; where it is rare
// enough, it is no part of any name.
type word struct {
	word, use string
	in        string // the packages that it is about, by the beginnings of their names; "" is all
	part      bool   // no part of a name either, of a local variable's neither
}

// servers are where third-party servers are, or were.
const servers = "connection servers"

var words = []word{
	{word: "Book", use: "Sessions, Ports, Servers"},
	{word: "live", use: "instance", in: servers},
	{word: "nursery", use: "reaper", part: true},
	{word: "Guard", use: "limit enforcer, origin check", in: "guest api"},
	{word: "tap", use: "output reader", in: "guest"},
	{word: "kick", use: "poll"},
	{word: "drain", use: "flush", in: "guest"},
	{word: "piece", use: "cell", part: true},
	{word: "line", use: "conn", in: "egress"},
	{word: "Account", use: "meter", in: "egress session"},
	{word: "Recount", use: "reset", part: true},
	{word: "line", use: "reply writer", in: "gateway"},
	{word: "caller", use: "client", in: "gateway"},
	{word: "retrier", use: "retrying client", part: true},
	{word: "outbox", use: "notifier", part: true},
	{word: "notice", use: "notification", in: "gateway"},
	{word: "patientWriter", use: "keep-alive writer", part: true},
	{word: "beat", use: "heartbeat", in: "gateway"},
	{word: "shortcut", use: "fast path", part: true},
	{word: "ordinary", use: "cacheable", part: true},
	{word: "likeness", use: "fingerprint", part: true},
	{word: "taken", use: "accepted", in: "gateway"},
	{word: "whole", use: "coalescing writer", in: "agent/wire"},
	{word: "era", use: "stateful or stateless protocol, with the revision", part: true},
	{word: "Can", use: "capabilities"},
	{word: "heard", use: "authorization server metadata", in: servers},
	{word: "heeding", use: "authorization server metadata", part: true},
	{word: "keep", use: "save", in: servers},
	{word: "kept", use: "stored", in: servers},
	{word: "unkeep", use: "delete", part: true},
	{word: "strays", use: "orphans", part: true},
	{word: "settle", use: "commit"},
	{word: "putBack", use: "roll back"},
	{word: "setAside", use: "begin replace"},
	{word: "told", use: "redact"},
	{word: "reason", use: "cause", in: servers},
	{word: "ours", use: "safe error", in: servers + " mcpclient mcpclient"},
	{word: "Order", use: "install request", in: servers},
	{word: "worker", use: "installer", in: servers},
	{word: "product", use: "result", in: servers},
	{word: "recipe", use: "commands", in: servers},
	{word: "halt", use: "stop", in: servers},
	{word: "lost", use: "exited", in: servers},
	{word: "rest", use: "stop idle", in: servers},
	{word: "again", use: "schedule restart", in: "connection"},
	{word: "take", use: "sync", in: servers},
	{word: "place", use: "apply", in: servers},
	{word: "review", use: "rebuild", in: servers},
	{word: "reviewed", use: "rebuild", in: servers},
	{word: "spool", use: "output files", in: "guest"},
	{word: "window", use: "ring buffer", in: "guest"},
	{word: "slay", use: "kill tree", part: true},
	{word: "thin", use: "kill largest", in: "guest"},
	{word: "relieve", use: "check processes", part: true},
	{word: "crowd", use: "check processes", in: "guest"},
	{word: "often", use: "poll fast"},
	{word: "steady", use: "poll interval"},
	{word: "seldom", use: "idle interval"},
	{word: "soon", use: "reload interval"},
	{word: "glance", use: "sample"},
	{word: "breath", use: "refill delay"},
	{word: "pulse", use: "interval"},
	{word: "hot", use: "threshold"},
	{word: "patience", use: "timeout, with what waits"},
	{word: "whisper", use: "write secret", part: true},
	{word: "hush", use: "remove secret", part: true},
	{word: "Shelf", use: "workspace store", in: "workspace pool"},
	{word: "waste", use: "discard"},
	{word: "Snapshotter", use: "Prebooter", part: true},
	{word: "Copied", use: "prebooted", in: "sandbox runtime pool"},
	{word: "shoot", use: "preboot", part: true},
	{word: "ErrLies", use: "ErrProtocol", part: true},
	{word: "honest", use: "validate", part: true},
	{word: "gate", use: "lock"},
	{word: "enter", use: "acquire", in: servers + " agent egress gateway guest limit port session"},
	{word: "leave", use: "release", in: servers + " agent egress gateway guest limit port session"},
	{word: "turn", use: "slot"},
	{word: "turns", use: "limiter"},
	{word: "flight", use: "in-flight call", part: true},
	{word: "board", use: "begin", in: servers},
	{word: "land", use: "end", in: servers},
	{word: "guarded", use: "recover middleware", in: "api"},
	{word: "recovered", use: "recover middleware", in: "api"},
	{word: "page", use: "shared state", in: "guest/interp agent"},
	{word: "attend", use: "supervise", part: true},
	{word: "charge", use: "adopt", in: "guest"},
	{word: "CallMe", use: "notify", part: true},
	{word: "Exit", use: "Outlet or Proxy", in: "egress session pool"},
	{word: "journal", use: "rate-limited log", in: "egress agent"},
	{word: "shelf", use: "suspended calls", in: "gateway"},
	{word: "passing", use: "proxy", in: "gateway hub"},
	{word: "foreign", use: "external", in: "gateway hub tool"},
	{word: "theirTool", use: "proxied tool", part: true},
	{word: "Asks", use: "elicits"},
	{word: "asking", use: "awaiting the user"},
	{word: "Came", use: "callback"},
	{word: "Begin", use: "redirect", in: servers},
	{word: "Invite", use: "consent page"},
	{word: "pending", use: "authorization request", in: servers},
	{word: "Plan", use: "change", in: servers},
	{word: "Agree", use: "consent", in: servers},
	{word: "claims", use: "owners", in: servers},
	{word: "fresh", use: "never started", in: servers},
	{word: "anew", use: "replacing", in: servers},
	{word: "aside", use: "previous", in: servers},
	{word: "logbook", use: "log buffer", part: true},
	{word: "noise", use: "non-protocol output", in: servers},
	{word: "LetGo", use: "detach"},
	{word: "forsake", use: "close", part: true},
	{word: "Part", use: "drain", in: "session pool agent sandbox"},
	{word: "Rest", use: "stop owned", in: "session"},
	{word: "room", use: "reserve", in: "session"},
	{word: "keeper", use: "pinner", in: "runtime"},
	{word: "Bank", use: "fake authorization server"},
}

// TestWords: code has the words of the field. Where it has not, words.txt says how
// often a package has a word, and that only gets less; what moves to another package
// takes its number with it.
func TestWords(t *testing.T) {
	const file = "words.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[[2]string]int{} // by word and package
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%s:%d: want WORD PACKAGE NUMBER", file, i+1)
		}
		n, err := strconv.Atoi(f[2])
		if err != nil {
			t.Fatalf("%s:%d: %v", file, i+1, err)
		}
		listed[[2]string{f[0], f[1]}] = n
	}
	found := namesOf(t, "../..")
	may, have := map[string]int{}, map[string]int{}
	for k, n := range listed {
		may[k[0]] += n
	}
	for k, places := range found {
		have[k[0]] += len(places)
	}
	grew := false
	for _, k := range slices.SortedFunc(maps.Keys(found), compare) {
		if have[k[0]] > may[k[0]] && len(found[k]) > listed[k] && !*accept {
			grew = true
			t.Errorf("%s has %d names with %q: say %q\n\t%s", k[1], len(found[k]), k[0], uses(k[0]),
				strings.Join(found[k], "\n\t"))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(listed), compare) {
		if len(found[k]) == 0 && have[k[0]] <= may[k[0]]-listed[k] && !*update && !*accept {
			t.Errorf("%s: delete the line \"%s %s %d\": it is gone", file, k[0], k[1], listed[k])
		}
	}
	if *accept || *update && !grew {
		b := strings.Builder{}
		b.WriteString("# How many names of a package have a word that the field has another for: word, package,\n" +
			"# number. It only gets less; \"go test ./internal/importtest -run Words -update\" lowers it.\n")
		for _, k := range slices.SortedFunc(maps.Keys(found), compare) {
			fmt.Fprintln(&b, k[0], k[1], len(found[k]))
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func compare(a, b [2]string) int { return slices.Compare(a[:], b[:]) }

func uses(w string) string {
	var u []string
	for _, o := range words {
		if o.word == w {
			u = append(u, o.use)
		}
	}
	return strings.Join(u, ", or ")
}

// namesOf yields where names have one of the words, by word and package.
func namesOf(t *testing.T, root string) map[[2]string][]string {
	t.Helper()
	found := map[[2]string][]string{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p, err := filepath.Rel(filepath.Join(root, "internal"), filepath.Dir(path))
		if err != nil {
			return err
		}
		names(f, func(id *ast.Ident, local bool) {
			for _, w := range words {
				if w.is(id.Name, p, local) {
					at := fset.Position(id.Pos())
					k := [2]string{w.word, p}
					found[k] = append(found[k], fmt.Sprintf("%s:%d: %s", strings.TrimPrefix(path, root+"/"), at.Line,
						id.Name))
				}
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// is reports whether a name in a package has the word.
func (w word) is(name, p string, local bool) bool {
	if w.in != "" && !slices.ContainsFunc(strings.Fields(w.in), func(in string) bool { return below(p, in) }) {
		return false
	}
	if !w.part {
		return !local && strings.EqualFold(name, w.word)
	}
	for _, have := range camel(name) {
		if strings.EqualFold(have, w.word) || strings.EqualFold(have, w.word+"s") {
			return true
		}
	}
	return strings.EqualFold(name, w.word)
}

// camel takes a name apart at its capitals.
func camel(name string) []string {
	var parts []string
	start := 0
	rs := []rune(name)
	for i := 1; i <= len(rs); i++ {
		if i == len(rs) || unicode.IsUpper(rs[i]) && !unicode.IsUpper(rs[i-1]) {
			parts = append(parts, string(rs[start:i]))
			start = i
		}
	}
	return parts
}

// names calls do for each name that a file declares; local are variables and
// parameters inside functions.
func names(f *ast.File, do func(id *ast.Ident, local bool)) {
	each := func(local bool, ids ...*ast.Ident) {
		for _, id := range ids {
			do(id, local)
		}
	}
	inside := false
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			each(false, n.Name)
		case *ast.TypeSpec:
			each(false, n.Name)
			switch s := n.Type.(type) {
			case *ast.StructType:
				for _, f := range s.Fields.List {
					each(false, f.Names...)
				}
			case *ast.InterfaceType:
				for _, m := range s.Methods.List {
					each(false, m.Names...)
				}
			}
		case *ast.FuncType:
			for _, l := range []*ast.FieldList{n.Params, n.Results} {
				if l != nil {
					for _, f := range l.List {
						each(true, f.Names...)
					}
				}
			}
		case *ast.ValueSpec:
			each(inside, n.Names...)
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					each(true, id)
				}
			}
		}
		return true
	}
	for _, d := range f.Decls {
		_, inside = d.(*ast.FuncDecl)
		ast.Inspect(d, visit)
	}
}
