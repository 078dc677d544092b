package mcpcommand

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/servers/toolfiles"
)

const issueSchema = `{"type":"object","properties":{"title":{"type":"string"},"labels":{"type":"array","items":{"type":"string"}},
	"numbers":{"type":"array","items":{"type":"integer"}},"count":{"anyOf":[{"type":"integer"},{"type":"null"}]},
	"draft":{"type":"boolean"},"place":{"$ref":"#/$defs/Place"},"in-reply":{"type":"string"},"any":{}},
	"required":["title"],"$defs":{"Place":{"type":"object","properties":{"x":{"type":"number"}}}}}`

// tree writes the tool tree that the host makes, and returns its folder. padding makes more tools, whose documents are
// then parts of the server's.
func tree(t *testing.T, padding int) string {
	t.Helper()
	s := toolfiles.Server{Name: "git-hub", Title: "GitHub", Tools: []toolfiles.Tool{
		{Name: "gh_create-issue", Remote: "create-issue", Description: "Creates an issue.\n## list\nno heading",
			Input: json.RawMessage(issueSchema)}}}
	for _, name := range []string{"list", "image", "fail", "refuse", "die", "mixed", "restart", "stop", "over"} {
		s.Tools = append(s.Tools, toolfiles.Tool{Name: "gh_" + name, Remote: name, Description: "Does " + name + "."})
	}
	for i := range padding {
		name := "padding" + strings.Repeat("x", i)
		s.Tools = append(s.Tools, toolfiles.Tool{Name: name, Remote: name})
	}
	dir := t.TempDir()
	for _, f := range toolfiles.Tree([]toolfiles.Server{s, {Name: "off", State: "it was stopped"},
		{Name: "gone", Off: true, State: "disconnected; connect it again"}}) {
		path := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// host answers requests in a folder as the host does.
func host(t *testing.T, dir string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	data := base64.StdEncoding.EncodeToString([]byte("\x00png"))
	answers := map[string]string{
		"list":   `{"progress":"wait"}` + "\n" + `{"result":{"structuredContent":{"a":[1,2]},"content":[]}}`,
		"image":  `{"result":{"content":[{"type":"text","text":"seen:"},{"type":"image","data":"` + data + `","mimeType":"image/png"}]}}`,
		"fail":   `{"result":{"isError":true,"content":[{"type":"text","text":"no such thing"}]}}`,
		"refuse": `{"error":{"code":"busy","message":"too many calls"}}`,
		"stop":   `{"error":{"code":"unavailable","message":"not made","retry":true}}`,
		"over":   `{"error":{"code":"unavailable","message":"nobody comes"}}`,
		"mixed": `{"result":{"content":[{"type":"resource_link","uri":"u:1","name":"one"},{"type":"resource","resource":{"text":"inner"}},
			{"type":"resource","resource":{"blob":"` + data + `","mimeType":"x/../../y"}}]}}`,
	}
	go func() {
		defer close(done)
		for restarts := 0; ; {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadBytes('\n')
			var r struct {
				Call *struct {
					Server, Tool string
					Arguments    json.RawMessage
				}
				Search json.RawMessage
			}
			_ = json.Unmarshal(line, &r)
			switch {
			case r.Search != nil:
				c.Write([]byte(`{"found":{"hits":[{"kind":"tool","server":"git-hub","remote":"list","name":"gh_list",` +
					`"problem":"its server is off"},{"kind":"tool","server":"git-hub","remote":"list","problem":"its server is off"},{"kind":"prompt","server":"git-hub","name":"gh_plan","text":"Plans"}],"more":3}}` + "\n"))
			case r.Call != nil && r.Call.Server != "git-hub":
				answer := map[string]string{"off": `{"code":"connection_error","message":"log in at L"}`,
					"away": `{"code":"connection_error","message":"away is disconnected"}`}[r.Call.Server]
				c.Write([]byte(`{"error":` + cmp.Or(answer, `{"code":"not_found","message":"no"}`) + "}\n"))
			case r.Call != nil && r.Call.Tool == "restart": // two of three calls come while there is no server
				restarts++
				c.Write([]byte(answers[map[bool]string{true: "list", false: "stop"}[restarts%3 == 0]] + "\n"))
			case r.Call == nil || answers[r.Call.Tool] == "" && r.Call.Tool != "create-issue":
			case r.Call.Tool == "create-issue":
				text, _ := json.Marshal(string(r.Call.Arguments))
				c.Write([]byte(`{"result":{"content":[{"type":"text","text":` + string(text) + `}]}}` + "\n"))
			default:
				c.Write([]byte(strings.ReplaceAll(answers[r.Call.Tool], "\n\t", " ") + "\n"))
			}
			c.Close()
		}
	}()
}

// run runs the command with arguments, which a space separates.
func run(dir, in, args string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = Run(dir, strings.Split(args, " "), strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

func TestCommand(t *testing.T) {
	dir := tree(t, 0)
	code, out, _ := run(dir, "", "search issue create")
	if code != 0 || !strings.HasPrefix(out, "git_hub create_issue(title,") {
		t.Errorf("search without a host: %d, %s", code, out)
	}
	for args, want := range map[string]string{"call git_hub list": "nothing was called",
		"call off any": "it was stopped", "call gone any": "connect it again", "call nowhere any": "Connected are"} {
		if code, _, e := run(dir, "", args); code == 0 || !strings.Contains(e, want) {
			t.Errorf("%s without a host: %d, %s", args, code, e)
		}
	}
	host(t, dir)
	files := filepath.Join(t.TempDir(), "made", "here")
	for _, tt := range []struct {
		args, in string
		code     int
		want     string // what standard output, or standard error has
	}{
		{"--help", "", 0, "mcp call SERVER TOOL"},
		{"help", "", 0, "mcp call SERVER TOOL"},
		{"ls", "", 0, "git_hub (10 tools) GitHub\ngone (disconnected; connect it again) \noff (it was stopped) \n"},
		{"ls gone", "", 0, "cannot be called now: disconnected; connect it again"},
		{"help gone", "", 1, "cannot be called now: disconnected; connect it again"},
		{"ls git-hub", "", 0, "list(…) Does list.\n"},
		{"ls git_hub", "", 0,
			"create_issue(title, labels?, numbers?, count?, draft?, place?, in_reply?, any?) Creates an issue."},
		{"ls nowhere", "", 2, "Connected are: git_hub, off"},
		{"help git_hub", "", 0, "# git_hub"},
		{"help git_hub create-issue", "", 0, "- in_reply (\"in-reply\"): `string`"},
		{"help git_hub nothing", "", 2, "has no tool"},
		{"search words", "", 0,
			"git_hub list(…) [its server is off] Does list.\n" +
				"git_hub list(…) [its server cannot be used, see above] Does list.\n" +
				"prompt git-hub gh_plan Plans\nand 3 more\n"},
		{"call git_hub list", "", 0, `{"a":[1,2]}` + "\n"},
		{"call git_hub list --raw", "", 0, `{"structuredContent"`},
		{"call git-hub gh_list --timeout 5", "", 0, `{"a":[1,2]}`},
		{"call git_hub fail", "", 1, "mcp: no such thing\n"},
		{"call git_hub refuse", "", 1, "mcp: too many calls\n"},
		{"call git_hub restart", "", 0, `{"a":[1,2]}` + "\n"},
		{"call git_hub stop --timeout 0.1", "", 1, "mcp: not made\n"},
		{"call git_hub over", "", 1, "mcp: nobody comes\n"},
		{"call git_hub die", "", 1, "the tool may have run"},
		{"call git_hub image --out " + files, "", 0, "seen:\n" + files + "/image-1.png\n"},
		{"call git_hub image --out " + files, "", 0, "seen:\n" + files + "/image-2.png\n"},
		{"call git_hub mixed --out=" + files, "", 0, "u:1 one\ninner\n" + files + "/file-1\n"},
		{"call git_hub create_issue title=a=b labels=x labels=7 numbers=1 numbers=2 count=3 draft=true in_reply=y " +
			"any=[1]", "", 0, `{"any":[1],"count":3,"draft":true,"in-reply":"y","labels":["x","7"],"numbers":[1,2],"title":"a=b"}` + "\n"},
		{`call git_hub create_issue title=1 labels=["p","q"] count:=null place={"x":1} any=word`, "", 0,
			`{"any":"word","count":null,"labels":["p","q"],"place":{"x":1},"title":"1"}` + "\n"},
		{"call git_hub create_issue --json -", `{"title":"t","more":1}`, 0, `{"more":1,"title":"t"}`},
		{`call git_hub create_issue --json {"title":"t"}`, "", 0, `{"title":"t"}`},
		{"call git_hub create_issue -- title=--x", "", 0, `{"title":"--x"}`},
		{"call git_hub list more=1", "", 0, `{"a":[1,2]}`},
		{"call git_hub create_issue", "", 2, "title is missing"},
		{"call git_hub create_issue title=x nothing=1", "", 2, "no argument \"nothing\""},
		{"call git_hub create_issue title=x title=y", "", 2, "given twice"},
		{"call git_hub create_issue title=x count=many", "", 2, "count needs a number"},
		{"call git_hub create_issue title=x draft=1", "", 2, "true or false"},
		{"call git_hub create_issue title=x place=[1]", "", 2, "a JSON object"},
		{"call git_hub create_issue title=x any:=nothing", "", 2, "not JSON"},
		{"call git_hub create_issue title", "", 2, "not NAME=VALUE"},
		{"call git_hub create_issue --json [] ", "", 2, "both"},
		{"call git_hub create_issue --json []", "", 2, "not a JSON object"},
		{"call git_hub list --timeout x", "", 2, "seconds"},
		{"call git_hub list --what", "", 2, "no option --what"},
		{"call git_hub", "", 2, "mcp call SERVER TOOL"},
		{"call git_hub nothing", "", 2, "`mcp ls git_hub` lists its tools"},
		{"call off any a=1", "", 1, "mcp: log in at L\n"}, // the tree does not know its tools
		{"help off any", "", 2, "no tool \"any\" that is known: it was stopped"},
		{"call away any", "", 1, "mcp: away is disconnected\n"},
		{"call nowhere any", "", 2, "Connected are: git_hub, off"},
		{"list", "", 2, "no command"},
	} {
		code, out, errOut := run(dir, tt.in, tt.args)
		if code != tt.code || !strings.Contains(out+errOut, tt.want) || (code == 0) != (errOut == "") {
			t.Errorf("mcp %s: %d\n%s%s\nwanted %d, %q", tt.args, code, out, errOut, tt.code, tt.want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(files, "image-1.png")); err != nil || string(data) != "\x00png" {
		t.Errorf("the image is %q, %v", data, err)
	}
	if code, _, e := run(t.TempDir(), "", "ls"); code != 1 || !strings.Contains(e, "no MCP server is connected") {
		t.Errorf("without a tree: %d, %s", code, e)
	}
}

// The document of a tool has nothing of the others'.
func TestHelpInManyTools(t *testing.T) {
	dir := tree(t, 400)
	code, out, _ := run(dir, "", "help git_hub create-issue")
	if code != 0 || !strings.HasPrefix(out, "## create_issue\n") || !strings.Contains(out, "> ## list\n") ||
		!strings.Contains(out, "`number | null`") || strings.Count(out, "\n## ") != 0 {
		t.Errorf("%d\n%s", code, out)
	}
	if _, out, _ := run(dir, "", "help git_hub list"); !strings.HasPrefix(out, "## list\n\n> Does list.") {
		t.Errorf("%s", out)
	}
}
