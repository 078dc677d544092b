package store

import (
	"testing"

	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/store/storetest"
)

// An answer replaces the one about the same subject, and none about another text.
func TestAnswers(t *testing.T) { storetest.Each(t, testAnswers) }

func testAnswers(t *testing.T, dir string) {
	db := open(t, dir)
	about := question.Subject{Principal: "user:ann", Operation: policy.MCPInstall, Detail: "docs npm:docs",
		Shown: question.TextHash("Runs: docs")}
	other := about
	other.Shown = question.TextHash("Runs: evil")
	last := question.Answer{ID: "c", Subject: about, By: "user:ann", Given: at}
	for _, a := range []question.Answer{{ID: "a", Subject: about, Allowed: true, By: "user:ann", Given: at},
		{ID: "b", Subject: other, Allowed: true, By: "user:ann", Given: at}, last} {
		if err := db.PutAnswer(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	list, err := db.Answers(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != "b" || list[0].Subject != other || list[1] != last {
		t.Errorf("%+v %v", list, err)
	}
	// What cannot replace an answer leaves it as it is.
	failed := last
	failed.ID, failed.Allowed = "b", true // the id is taken
	if err := db.PutAnswer(t.Context(), failed); err == nil {
		t.Error("two answers have one id")
	}
	if again, err := db.Answers(t.Context()); err != nil || len(again) != 2 || again[1] != last {
		t.Errorf("after a failure: %+v %v", again, err)
	}
}
