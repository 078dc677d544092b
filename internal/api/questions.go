package api

import (
	"net/http"

	"sandlot/internal/hub"
)

// questionAnswer reads the answer to a question.
func questionAnswer(w http.ResponseWriter, r *http.Request) (hub.QuestionAnswer, error) {
	a := hub.QuestionAnswer{QuestionID: hub.QuestionID(r.PathValue("id"))}
	err := decode(w, r, 64<<10, &a, "nothing but answer (yes or no), for (once, session or always), and "+
		"content (an object with the fields of a form)")
	return a, err
}
