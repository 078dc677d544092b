package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/api/openapi"
)

// The guide has the reference of today's routes, each with a section that the table leads to.
func TestTheGuideIsUpToDate(t *testing.T) {
	file := filepath.Join("../..", guide)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	updated, err := update(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if updated != string(text) {
		t.Fatalf("%s is not what the routes say: run `go run ./test/reference`", guide)
	}
	if n := strings.Count(updated, "\n### GET /v1/"); n < 10 {
		t.Errorf("only %d routes with GET are in it", n)
	}
	for _, want := range []string{
		"| [`PUT /v1/sessions/{id}/files/{path}`](#put-v1sessionsidfilespath) | yes | Write a file |",
		"| `limit` | query | integer from 1 to 1000 |", "| `Idempotency-Key` | header | string like `^[!-~]+$` |",
		"| 200 | `application/json` [SessionPage](#sessionpage) |", "| `sessions[].session_id` | string |",
		"| `next_cursor` | string | Optional. ", "| 400, 401, 403, 404, 409, 411, 412, 429, 500, 503 | ",
	} {
		if !strings.Contains(updated, want) {
			t.Errorf("it has no %q", want)
		}
	}
}

// What is written by hand stays, and what is generated comes back.
func TestOnlyTheGeneratedPartsChange(t *testing.T) {
	text := "by hand\n<!-- routes: made by `go run ./test/reference` -->\nold\n<!-- end of routes -->\nbetween\n" +
		"<!-- reference: made by `go run ./test/reference` -->\n<!-- end of reference -->\nbelow\n"
	updated, err := update(text)
	if err != nil || strings.Contains(updated, "\nold\n") || !strings.HasPrefix(updated, "by hand\n<!-- routes") ||
		!strings.Contains(updated, "<!-- end of routes -->\nbetween\n<!-- ref") ||
		!strings.HasSuffix(updated, "<!-- end of reference -->\nbelow\n") {
		t.Errorf("%v\n%.500s", err, updated)
	}
	if again, err := update(updated); err != nil || again != updated {
		t.Errorf("a second time it is another text: %v", err)
	}
	for _, bad := range []string{"", strings.Replace(text, "end of routes", "end", 1), text + text} {
		if _, err := update(bad); err == nil {
			t.Errorf("%.80q is taken", bad)
		}
	}
}

func TestTypesInWords(t *testing.T) {
	for want, s := range map[string]*openapi.JSONSchema{
		"any": {}, "boolean": {Types: []string{"boolean", "null"}}, "`a`, `b`": openapi.OneOf("a", "b"),
		"list of integer from 1 to 9":   openapi.List(openapi.Between(1, 9)),
		"string like `^(a\\|b)$`":       openapi.Text("^(a|b)$"),
		"map of string":                 {Type: "object", AdditionalProperties: openapi.Text("")},
		"list of [Info](#info)":         openapi.List(&openapi.JSONSchema{Ref: schemas + "Info"}),
		"string of 1 to 255 characters": openapi.Length(1, 255),
	} {
		if got := typeText(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
