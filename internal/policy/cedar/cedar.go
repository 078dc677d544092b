// Package cedar decides by policies in Cedar (https://docs.cedarpolicy.com), beside the rules of package policy.
package cedar

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// The types of the entities that policies name.
const (
	principalType types.EntityType = "Principal"
	roleType      types.EntityType = "Role"
	actionType    types.EntityType = "Action"
	serverType    types.EntityType = "Server"
)

// resourceTypes are the types of resources, by the kinds that package policy has for them.
var resourceTypes = map[string]types.EntityType{"": serverType, "session": "Session", "connection": "Connection",
	"secret": "Secret", "template": "Template", "question": "Question",
	"quota": "Quota"}

// Policies are compiled policies, which do not change. They implement policy.Engine.
type Policies struct {
	byOperation map[policy.Operation]list
}

// statement is one policy.
type statement struct {
	*cedar.Policy
	elicits bool
	rule    policy.Rule
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
	p := &Policies{byOperation: map[policy.Operation]list{}}
	for _, one := range parsed {
		at := place(file, line, one.Position().Line)
		s := &statement{Policy: one, rule: policy.Rule{Text: shown(one), Place: at + ":" +
			fmt.Sprint(one.Position().Column)}}
		operations, err := s.check()
		if err != nil {
			return nil, fmt.Errorf("%s: cedar: %w", at, err)
		}
		for _, o := range operations {
			p.byOperation[o] = append(p.byOperation[o], s)
		}
	}
	return p, nil
}

func place(file string, first, line int) string { return fmt.Sprintf("%s:%d", file, first+line) }

// shown returns the text of a policy for people, in one line.
func shown(p *cedar.Policy) string {
	return fault.Clip(strings.Join(strings.Fields(string(p.MarshalCedar())), " "))
}

// scope is one part of a policy's scope, in Cedar's JSON form.
type scope struct {
	Op         string   `json:"op"`
	Entity     *entity  `json:"entity"`
	Entities   []entity `json:"entities"`
	EntityType string   `json:"entity_type"`
	In         *struct {
		Entity *entity `json:"entity"`
	} `json:"in"`
}

type entity struct {
	Type types.EntityType `json:"type"`
	ID   string           `json:"id"`
}

// entities lists the entities of a scope.
func (s scope) entities() []entity {
	all := s.Entities
	if s.Entity != nil {
		all = append(all, *s.Entity)
	}
	if s.In != nil && s.In.Entity != nil {
		all = append(all, *s.In.Entity)
	}
	return all
}

// check checks a policy's annotations and its scope, where a slip would make a policy that never applies. It returns
// the operations that the policy may be about.
func (s *statement) check() ([]policy.Operation, error) {
	for name := range s.Annotations() {
		if name != "ask" && name != "id" && name != "description" {
			return nil, fmt.Errorf("there is no annotation @%s: there are @ask, @id and @description", name)
		}
	}
	_, s.elicits = s.Annotations()["ask"]
	if s.elicits {
		s.rule.Effect = policy.Ask
	}
	if s.elicits && s.Effect() == cedar.Forbid {
		return nil, fmt.Errorf("@ask stands before permit only: what is forbidden is not asked about")
	}
	text, err := s.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var scopes struct{ Principal, Action, Resource scope }
	if err := json.Unmarshal(text, &scopes); err != nil {
		return nil, err
	}
	if err := checkPrincipals(scopes.Principal); err != nil {
		return nil, err
	}
	if err := checkResources(scopes.Resource); err != nil {
		return nil, err
	}
	return operations(scopes.Action)
}

func checkPrincipals(s scope) error {
	if s.EntityType != "" && s.EntityType != string(principalType) {
		return fmt.Errorf("a principal is no %s: principals are of the type Principal", s.EntityType)
	}
	for _, e := range s.entities() {
		switch e.Type {
		case roleType:
			if _, err := auth.ParseRole(e.ID); err != nil {
				return err
			}
		case principalType:
			id, err := auth.ParseID(e.ID)
			if err != nil {
				return err
			}
			if name(id) != e.ID {
				return fmt.Errorf("Principal::%q is written Principal::%q", e.ID, name(id))
			}
		default:
			return fmt.Errorf(`there is no type %s for principals: there are Principal::"ann" and Role::"operator"`, e.Type)
		}
	}
	return nil
}

func checkResources(s scope) error {
	var known []string
	for _, t := range resourceTypes {
		known = append(known, string(t))
	}
	slices.Sort(known)
	used := []string{s.EntityType}
	for _, e := range s.entities() {
		used = append(used, string(e.Type))
	}
	for _, t := range used {
		if t != "" && !slices.Contains(known, t) {
			return fmt.Errorf("there is no type %s for resources: there are %s", t, strings.Join(known, ", "))
		}
	}
	return nil
}

// operations returns the operations of a scope. The parent of an action is its noun: `action in Action::"file"`.
func operations(s scope) (found []policy.Operation, err error) {
	all := policy.Operations()
	named := s.entities()
	for _, o := range all {
		noun, _, _ := strings.Cut(o, ".")
		if len(named) == 0 || slices.ContainsFunc(named, func(e entity) bool {
			return e.Type == actionType && (e.ID == o || s.Op == "in" && e.ID == noun)
		}) {
			found = append(found, policy.Operation(o))
		}
	}
	for _, e := range named {
		isNoun := slices.ContainsFunc(all, func(o string) bool { return strings.HasPrefix(o, e.ID+".") })
		switch {
		case e.Type != actionType:
			return nil, fmt.Errorf("there is no type %s for actions: they are Action::\"shell.execute\"", e.Type)
		case isNoun && s.Op != "in":
			return nil, fmt.Errorf("Action::%q has all of its operations in it: write `action in Action::%q`", e.ID,
				e.ID)
		case !isNoun && !policy.Operation(e.ID).Known():
			return nil, fmt.Errorf("there is no operation %q%s", fault.Clip(e.ID), fault.DidYouMean(e.ID, all))
		}
	}
	return found, nil
}

// name returns the id of a principal as policies have it: a user's name, or an id that is no user's.
func name(id string) string { return strings.TrimPrefix(id, "user:") }
