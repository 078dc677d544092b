// Package cedar decides by policies in Cedar (https://docs.cedarpolicy.com), beside the rules of package policy.
package cedar

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// The types of the entities that policies name.
const (
	principalType types.EntityType = "Principal"
	roleType      types.EntityType = "Role"
	actionType    types.EntityType = "Action"
	serverType    types.EntityType = "Server"
	quotaType     types.EntityType = "Quota"
)

// resourceTypes are the types of resources, by the kinds that package policy has for them.
var resourceTypes = map[string]types.EntityType{"": serverType, "session": "Session", "connection": "Connection",
	"secret": "Secret", "template": "Template", "question": "Question", "quota": quotaType}

// Policies are compiled policies, which do not change. They implement policy.Engine.
type Policies struct {
	byOperation map[policy.Operation]*statements
}

// statements are the policies that may be about one operation.
type statements struct {
	all list
	// parts are those that can take something back for one command of a line: they depend on the detail, and forbid
	// or ask.
	parts list
	work  work // of the evaluation of parts
}

// add adds a policy.
func (s *statements) add(one *statement) {
	s.all = append(s.all, one)
	if one.contexts > one.constant && (one.elicits || one.Effect() == cedar.Forbid) {
		s.parts = append(s.parts, one)
		s.work.nodes, s.work.texts = s.work.nodes+one.work.nodes+1, s.work.texts+one.work.texts
	}
}

// work is what an evaluation costs: its nodes, and how many of them compare texts.
type work struct{ nodes, texts int }

// statement is one policy.
type statement struct {
	*cedar.Policy
	elicits bool
	rule    policy.Rule
	// contexts is how often the conditions have the context, and constant how often only parts of it that are the
	// same for all commands of a line.
	contexts, constant int
	work               work
}

// list has the policies that may be about one operation, for Cedar to go through.
type list []*statement

// All goes through the policies, by their places in the settings as ids.
func (l list) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, s := range l {
			if !yield(cedar.PolicyID(s.rule.Place), s.Policy) {
				return
			}
		}
	}
}

// find returns the policy with an id.
func (l list) find(id cedar.PolicyID) *statement {
	i := slices.IndexFunc(l, func(s *statement) bool { return s.rule.Place == string(id) })
	return l[i]
}

// Parse compiles the policies of a text that begins in the line after the given one of a file. An error says where
// it is.
func Parse(text, file string, line int) (*Policies, error) {
	parsed, err := cedar.NewPolicyListFromBytes(file, []byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: cedar (the lines are counted from there): %w", place(file, line, 0), err)
	}
	if len(parsed) == 0 {
		return nil, fmt.Errorf("%s: cedar has no policy, and what no policy permits is refused: write one, or remove "+
			"cedar", place(file, line, 0))
	}
	p := &Policies{byOperation: map[policy.Operation]*statements{}}
	for i, one := range parsed {
		at := one.Position()
		s := &statement{Policy: one, rule: policy.Rule{Text: shown(one), Place: place(file, line, at.Line) + ":" +
			fmt.Sprint(at.Column)}}
		operations, err := s.check()
		if err != nil {
			end := len(text)
			if i+1 < len(parsed) {
				end = parsed[i+1].Position().Offset
			}
			if of, ok := errors.AsType[slip](err); ok {
				at.Line = lineOf(text, at.Offset, end, at.Line, of.words)
			}
			return nil, fmt.Errorf("%s: cedar: %w", place(file, line, at.Line), err)
		}
		for _, o := range operations {
			if p.byOperation[o] == nil {
				p.byOperation[o] = &statements{}
			}
			p.byOperation[o].add(s)
		}
	}
	return p, nil
}

func place(file string, first, line int) string { return fmt.Sprintf("%s:%d", file, first+line) }

// shown returns the text of a policy for people, in one line.
func shown(p *cedar.Policy) string {
	return fault.Clip(strings.Join(strings.Fields(string(p.MarshalCedar())), " "))
}

// name returns the id of a principal as policies have it: a user's name, or an id that is no user's.
func name(id string) string { return strings.TrimPrefix(id, "user:") }
