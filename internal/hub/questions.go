package hub

import (
	"context"
	"encoding/json"
	"errors"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
)

// QuestionList is the questions that wait for an answer, and the answers that are stored.
type QuestionList struct {
	Questions []question.Question `json:"questions"`
	Answers   []question.Answer   `json:"answers"`
}

// listQuestions lists the principal's questions and answers; for an operator, those of all.
func (h *Hub) listQuestions(_ context.Context, p auth.Principal, _ None) (QuestionList, error) {
	if h.Questions == nil {
		return QuestionList{Questions: []question.Question{}, Answers: []question.Answer{}}, nil
	}
	own := questionsOf(p)
	return QuestionList{h.Questions.List(own), h.Questions.Answers(own)}, nil
}

// QuestionID is the id of a question, or of a stored answer.
type QuestionID string

// resource implements resourceInput.
func (id QuestionID) resource(h *Hub, _ auth.Principal) policy.Resource {
	if h.Questions == nil {
		return policy.Resource{Kind: "question", ID: string(id)}
	}
	return policy.Resource{Kind: "question", ID: string(id), Owner: h.Questions.OwnerOf(string(id))}
}

// QuestionAnswer answers a question.
type QuestionAnswer struct {
	QuestionID `json:"-"`
	Answer     string        `json:"answer"` // yes or no
	For        question.Span `json:"for"`    // once, session or always; empty: once
	// Content has values for the fields of a question with a form.
	Content map[string]json.RawMessage `json:"content,omitempty"`
}

func (h *Hub) answerQuestion(ctx context.Context, p auth.Principal, a QuestionAnswer) (None, error) {
	switch {
	case a.Answer != "yes" && a.Answer != "no":
		return None{}, fault.Argument("answer", "answer is %q, but must be yes or no", fault.Clip(a.Answer))
	case a.For == "":
		a.For = question.Once
	case a.For != question.Once && a.For != question.Session && a.For != question.Always:
		return None{}, fault.Argument("for", "for is %q, but must be once, session or always",
			fault.Clip(string(a.For)))
	}
	if len(a.Content) > 0 && (a.Answer == "no" || a.For != question.Once) {
		return None{}, fault.Argument("content", "only a yes that counts once has content")
	}
	if h.Questions == nil {
		return None{}, noQuestion()
	}
	var found bool
	var err error
	if len(a.Content) > 0 {
		found, err = h.Questions.AnswerForm(string(a.QuestionID), a.Content)
	} else {
		found, err = h.Questions.Answer(ctx, string(a.QuestionID), a.Answer == "yes", a.For, p)
	}
	if err == nil && !found {
		err = noQuestion()
	}
	if err == nil {
		h.Log.InfoContext(ctx, "a question was answered", "id", string(a.QuestionID), "by", p.ID, "answer",
			a.Answer, "for",
			string(a.For))
	}
	return None{}, err
}

// forgetAnswer removes a stored answer: then rules ask again.
func (h *Hub) forgetAnswer(ctx context.Context, p auth.Principal, id QuestionID) (None, error) {
	if h.Questions == nil {
		return None{}, noQuestion()
	}
	err := h.Questions.Forget(ctx, string(id))
	if errors.Is(err, question.ErrNone) {
		err = noQuestion()
	}
	return None{}, err
}

func noQuestion() error { return fault.New(fault.NotFound, "there is no such question") }
