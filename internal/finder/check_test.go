package finder

import (
	"encoding/json"
	"fmt"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

// checked compares arguments with a schema.
func checked(schema, args string) error {
	return checkArguments("t", json.RawMessage(`{"name":"t","inputSchema":`+schema+`}`), json.RawMessage(args))
}

func TestCheckArguments(t *testing.T) {
	const object = `{"type":"object","additionalProperties":false,"required":["title"],"properties":{` +
		`"title":{"type":"string","minLength":2,"maxLength":5,"pattern":"^[a-z]+$"},"n":{"type":"integer","minimum":1,"maximum":9},` +
		`"state":{"enum":["open","closed",null]},"labels":{"type":"array","maxItems":2,"items":{"type":"string"}},` +
		`"who":{"$ref":"#/$defs/person"},"any":{"anyOf":[{"type":"string"},{"type":"object","required":["id"]}]},` +
		`"both":{"allOf":[{"type":"number"},{"exclusiveMinimum":0}]},"null":{"type":["string","null"]},"x":{"const":7},` +
		`"old":{"type":"string","nullable":true},"pair":{"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}},` +
		`"patternProperties":{"^x-":{"type":"string"}},"$defs":{"person":{"type":"object","required":["name"],` +
		`"properties":{"name":{"type":"string"},"boss":{"$ref":"#/$defs/person"}}}}}`
	for args, want := range map[string]string{
		`{"title":"abc"}`: "", `{"title":"abc","n":3,"state":null,"labels":["a"],"x-y":"z"}`: "",
		`{"title":"abc","n":3.0,"null":null,"old":null,"x":7,"both":1.5,"any":{"id":1}}`: "",
		`{"title":"abc","who":{"name":"a","boss":{"name":"b"}},"pair":["a",1,2]}`:        "",
		`{}`:                                   "title is missing",
		`{"title":7}`:                          "title must be a string, and is 7",
		`{"title":"a"}`:                        "title has 1 characters, and must have at least 2",
		`{"title":"ABC"}`:                      `title is "ABC", and must match "^[a-z]+$"`,
		`{"title":"abc","titel":"x","n":10}`:   "n must be at most 9, and is 10; titel is unknown",
		`{"title":"abc","n":1.5}`:              "n must be a whole number, and is 1.5",
		`{"title":"abc","n":"3"}`:              `n must be a whole number, and is "3"`,
		`{"title":"abc","state":"opened"}`:     `state must be one of "open", "closed", null, and is "opened"`,
		`{"title":"abc","labels":"bug"}`:       `labels must be an array, and is "bug"`,
		`{"title":"abc","labels":["a",2,"c"]}`: "labels has 3 items, and must have at most 2; labels[1] must be a string",
		`{"title":"abc","who":{"boss":{}}}`:    "who.name is missing; who.boss.name is missing",
		`{"title":"abc","any":7}`:              "any fits none of 2 forms",
		`{"title":"abc","any":{}}`:             "any.id is missing",
		`{"title":"abc","both":0}`:             "both must be more than 0",
		`{"title":"abc","x":8}`:                "x must be 7, and is 8",
		`{"title":"abc","pair":[1,"a"]}`:       "pair[0] must be a string, and is 1; pair[1] must be a whole number",
		`{"title":"abc","null":7}`:             "null must be a string or null",
		`{"title":"abc","n":1e999}`:            "", // it cannot be read here, and is left to the server
	} {
		err := checked(object, args)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", args, err)
			}
			continue
		}
		f := fault.From(err)
		if err == nil || f.Kind != fault.InvalidParameters || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "Call t(title: string, any?, ") {
			t.Errorf("%s: %v\nwant %s", args, err, want)
		}
	}
	for _, schema := range []string{`{}`, `true`, `null`, `7`, `"x"`, `[]`, `{"type":"other"}`, `{"type":7}`, `{"$ref":"#/none"}`,
		`{"$ref":"http://x/y"}`, `{"properties":[],"required":{},"items":7,"enum":{},"anyOf":{}}`, `{"pattern":"(?=a)"}`,
		`{"properties":{"title":{"pattern":"(?<n>a)(?!b)[^"}}}`} {
		if err := checked(schema, `{"title":"abc"}`); err != nil {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

// hostileSchemas would take a validator for ever, or all of its memory.
func hostileSchemas() map[string][2]string {
	nested := strings.Repeat(`{"properties":{"a":`, 5000) + `{}` + strings.Repeat(`}}`, 5000)
	doubled := `{"$defs":{`
	for n := range 60 {
		doubled += fmt.Sprintf(`"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, n, n+1, n+1)
	}
	doubled += `"d60":{"type":"string"}},"$ref":"#/$defs/d0"}`
	names := make([]string, 20000)
	for n := range names {
		names[n] = fmt.Sprintf(`"%s%d"`, strings.Repeat("n", 30), n)
	}
	list := "[" + strings.Join(names, ",") + "]"
	properties := `{"` + strings.Join(strings.Split(strings.Trim(list, `[]`), ","), `:{},`)[1:] + `:{}}`
	many := "[" + strings.Repeat("1,", 200000) + "1]"
	patterns := ""
	for n := range 2000 {
		patterns += fmt.Sprintf(`"^(([a-z])+.)+%d[A-Z]([a-z])+$":{},`, n)
	}
	return map[string][2]string{
		"a loop":               {`{"$ref":"#"}`, `{}`},
		"a loop of two":        {`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, `{}`},
		"a loop of allOf":      {`{"allOf":[{"$ref":"#"},{"$ref":"#"}]}`, `{}`},
		"doubled sixty times":  {doubled, `{"a":1}`},
		"nested":               {nested, strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000)},
		"a long pattern":       {`{"properties":{"a":{"pattern":"` + strings.Repeat("(a{1,99}){1,9}", 5000) + `"}}}`, `{"a":"` + strings.Repeat("a", 1<<16) + `"}`},
		"a slow pattern":       {`{"properties":{"a":{"pattern":"^(a+)+$"}}}`, `{"a":"` + strings.Repeat("a", 1<<14) + `b"}`},
		"a large pattern":      {`{"properties":{"a":{"pattern":"((a{1,100}){1,100}){1,100}"}}}`, `{"a":"aaaa"}`},
		"many patterns":        {`{"patternProperties":{` + strings.TrimSuffix(patterns, ",") + `}}`, `{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa":1,"b":2}`},
		"many required":        {`{"required":` + list + `}`, `{}`},
		"many enums":           {`{"properties":{"a":{"items":{"enum":` + list + `}}}}`, `{"a":` + many + `}`},
		"many unknown":         {`{"additionalProperties":false,"properties":` + properties + `}`, `{"` + strings.Repeat("m", 1000) + `":1}`},
		"many items":           {`{"properties":{"a":{"items":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}`, `{"a":` + many + `}`},
		"many forms":           {`{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 30000) + `{"type":"null"}]}`, `{}`},
		"a pointer of slashes": {`{"$ref":"#` + strings.Repeat("/a", 100000) + `"}`, `{}`},
	}
}

// What a hostile server makes of its schema ends soon, and does not keep a call from it.
func TestHostileSchemas(t *testing.T) {
	for name, s := range hostileSchemas() {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			done := make(chan error, 1)
			go func() { done <- checked(s[0], s[1]) }()
			select {
			case err := <-done:
				if err != nil && len(err.Error()) > 8<<10 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				t.Logf("%s: %.200v", time.Since(began), err)
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
		})
	}
}

// largeValues are compared with schemas so often that the sizes of both have to count.
func largeValues() map[string][2]string {
	forms := func(form string) string {
		return `{"$defs":{"f":` + form + `},"properties":{"a":{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/f"},`, 3000) +
			`{"$ref":"#/$defs/f"}]}}}`
	}
	text, items := strings.Repeat("x", 200_000), strings.Repeat("7,", 20_000)
	members := ""
	for n := range 10_000 {
		members += fmt.Sprintf(`"m%d":1,`, n)
	}
	return map[string][2]string{
		"a text that is counted":  {forms(`{"maxLength":1}`), `{"a":"` + text + `"}`},
		"a constant text":         {forms(`{"const":"` + text + `y"}`), `{"a":"` + text + `z"}`},
		"a constant list":         {forms(`{"const":[` + items + `1]}`), `{"a":[` + items + `2]}`},
		"a choice of objects":     {forms(`{"enum":[{` + members + `"y":1}]}`), `{"a":{` + members + `"y":2}}`},
		"names that are sorted":   {forms(`{"required":["y"],"additionalProperties":{}}`), `{"a":{` + members + `"z":2}}`},
		"a long pattern's text":   {forms(`{"pattern":"^(a|x)*y"}`), `{"a":"` + text[:16<<10] + `"}`},
		"names that are compared": {forms(`{"additionalProperties":false,"properties":{"` + text + `":{}}}`), `{"a":{"` + text[:50] + `":1}}`},
	}
}

// The work of a check counts sizes: what is too much is left to the server.
func TestCheckCountsSizes(t *testing.T) {
	for name, s := range largeValues() {
		if err := checked(s[0], s[1]); err != nil {
			t.Errorf("%s: all of it was compared: %.200v", name, err)
		}
		if len(s[0]) > 300<<10 {
			t.Errorf("%s: a schema of %d bytes", name, len(s[0]))
		}
	}
}

// A short pattern can have a long program, which takes as long for each byte of a text: it is left to the server, and
// of shorter ones not many are compared.
func TestPatternsOfLongPrograms(t *testing.T) {
	text := strings.Repeat("x", maxMatched-1) + "\n"
	for pattern, left := range map[string]bool{strings.Repeat("(?:.?){999}", 23) + "$": true, `^.{2000,}`: true,
		`(a|b){999}`: true, `^(?:(?:[a-z]{2}){20}){20}$`: true, `^(a?){99}$`: false, `^[a-z0-9]{1,255}$`: false,
		`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`: false, `^$`: false} {
		c := &checker{}
		if c.matches(pattern, text) != left || c.exhausted() {
			t.Errorf("%.80s: it is left to the server is %v, %d steps", pattern, !left, c.steps)
		}
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			continue // not in Go
		}
		size := programSize(parsed)
		p, err := syntax.Compile(parsed.Simplify())
		if err != nil || len(p.Inst) > size+2 { // each program has two more
			t.Errorf("%.80s: %d instructions, at most %d; %v", pattern, len(p.Inst), size, err)
		}
	}
	c, done := &checker{}, 0
	for ; !c.exhausted(); done++ {
		c.matches(`^(?:x?){490}$`, text)
	}
	if done > 3 {
		t.Errorf("%d matches of a long program with a long text are made", done)
	}
}

// The size of a program is never taken for less than it is.
func FuzzProgramSize(f *testing.F) {
	for _, s := range []string{`(a{1,99}){1,9}`, `(?:.?){999}`, `(x*)*|(y+)?`, `a{0}b{0,}c{3,}d{0,3}`, `(|a|b)*(?i)kelvin`,
		`(()*)+`, `(a*){2,}[^\d\pL]\b$`, `abc|abd|x`, `(?:){7}(?:(?:|a){3}){2,5}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parsed, err := syntax.Parse(s, syntax.Perl)
		if err != nil {
			return
		}
		size := programSize(parsed)
		if p, err := syntax.Compile(parsed.Simplify()); err == nil && len(p.Inst) > size+2 {
			t.Errorf("%q has %d instructions, not %d", s, len(p.Inst), size)
		}
	})
}

// allocated returns how many bytes of memory f asks for.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What an error shows of a value, and where, does not cost what the value does.
func TestCheckAllocates(t *testing.T) {
	forms := `{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 5000) + `{"type":"null"}]}`
	long := strings.Repeat("n", 200_000)
	for name, s := range map[string][2]string{
		"a list":      {`{"properties":{"a":` + forms + `}}`, `{"a":[` + strings.Repeat("7,", 100_000) + `7]}`},
		"a long path": {`{"additionalProperties":{"items":{"type":"string"}}}`, `{"` + long + `":[` + strings.Repeat("7,", 15_000) + `7]}`},
		"types":       {`{"properties":{"a":{"type":[` + strings.Repeat(`"string",`, 20_000) + `"null"]}}}`, `{"a":7}`},
		"required":    {`{"properties":{"a":{}},"required":["a"` + strings.Repeat(`,"a"`, 50_000) + `]}`, `{}`},
	} {
		var err error
		n := allocated(func() { err = checked(s[0], s[1]) })
		if n > 64<<20 {
			t.Errorf("%s: %d MB", name, n>>20)
		}
		if err != nil && len(err.Error()) > 8<<10 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	if err := checked(`{"const":{"a":[1,"x",null,true]}}`, `{"a":[1,"x",null,false]}`); err == nil ||
		!strings.Contains(err.Error(), `must be {"a":[1,"x",null,true]}, and is {"a":[1,"x",null,false]}`) {
		t.Error(err)
	}
	if err := checked(`{"const":{"a":[1,"x",null,true]}}`, `{"a":[1,"x",null,true]}`); err != nil {
		t.Error(err)
	}
}

func FuzzCheckArguments(f *testing.F) {
	for _, s := range hostileSchemas() {
		if len(s[0])+len(s[1]) < 4096 {
			f.Add(s[0], s[1])
		}
	}
	f.Fuzz(func(t *testing.T, schema, args string) { _ = checked(schema, args) })
}

// A call of call_tool stands for that of the tool that it names, or is an error.
func TestResolve(t *testing.T) {
	o := &offers{}
	o.add(ann, "github", state.Connected, map[string]string{"create_issue": issue})
	f := newFinder(t, o)
	const name = "ext_github_create_issue"
	for args, want := range map[string][2]string{
		`{"name":"ext_github_create_issue","arguments":{"title":"x"}}`:       {name, `{"title":"x"}`},
		`{"name":"ext_github_create_issue","arguments":"{\"title\":\"x\"}"}`: {name, `{"title":"x"}`},
		`{"name":"execute_code","arguments":{"code":"1","extra":[1.0,2e5]}}`: {"execute_code", `{"code":"1","extra":[1.0,2e5]}`},
		`{"name":"get_sessions"}`:                               {"get_sessions", `{}`},
		`{"name":"get_sessions","arguments":null}`:              {"get_sessions", `{}`},
		`{"name":"no_such_tool","arguments":{}}`:                {"no_such_tool", `{}`},
		`{"name":"ext_github_create_issue","arguments":{}}`:     {"", "title is missing"},
		`{"name":"ext_github_create_issue","title":"x"}`:        {"", `call_tool has no argument "title"`},
		`{"name":"call_tool","arguments":{"name":"call_tool"}}`: {"", "must be the name of a tool"},
		`{"arguments":{}}`:                                      {"", "must be the name of a tool"},
		`{"name":7}`:                                            {"", "must be the name of a tool"},
		`{"name":"x","arguments":[]}`:                           {"", "must be an object"},
		`{"name":"x","arguments":"no"}`:                         {"", "must be an object"},
		`{"name":"x","name":"y"}`:                               {"", "without a member twice"},
		`[]`:                                                    {"", "one JSON object"},
		``:                                                      {"", "must be the name of a tool"},
	} {
		got, err := f.resolve(t.Context(), tool.Call{Principal: ann, Name: "call_tool", Args: json.RawMessage(args)})
		if want[0] == "" {
			if err == nil || !strings.Contains(err.Error(), want[1]) ||
				fault.From(err).Kind != fault.InvalidParameters {
				t.Errorf("%s: %v, want %s", args, err, want[1])
			}
			continue
		}
		if err != nil || got.Name != want[0] || string(got.Args) != want[1] {
			t.Errorf("%s: %s %s %v", args, got.Name, got.Args, err)
		}
	}
	if _, err := f.resolve(t.Context(), tool.Call{Principal: bob, Args: json.RawMessage(`{"name":"ext_github_create_issue"}`)}); err != nil {
		t.Errorf("what ann's tool takes is told to bob: %v", err)
	}
}
