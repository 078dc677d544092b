package cedar

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// slip is a mistake that would make a policy, or a condition of one, that never applies, or always fails.
type slip struct {
	error
	words []string // texts of the policy by which its line is found, the best one first
}

func slipf(words []string, format string, args ...any) error {
	return slip{fmt.Errorf(format, args...), words}
}

// check checks a policy's annotations, and the names in its scope and its conditions. It returns the operations that
// the policy may be about.
func (s *statement) check() ([]policy.Operation, error) {
	for name := range s.Annotations() {
		if name != "ask" && name != "id" && name != "description" {
			return nil, slipf([]string{"@" + string(name)}, "there is no annotation @%s: there are @ask, @id and "+
				"@description", name)
		}
	}
	_, s.elicits = s.Annotations()["ask"]
	if s.elicits {
		s.rule.Effect = policy.Ask
	}
	if s.elicits && s.Effect() == cedar.Forbid {
		return nil, errors.New("@ask stands before permit only: what is forbidden is not asked about")
	}
	tree := (*ast.Policy)(s.AST())
	for variable, part := range map[types.String]ast.IsScopeNode{"principal": tree.Principal, "action": tree.Action,
		"resource": tree.Resource} {
		if err := checkScope(variable, part); err != nil {
			return nil, err
		}
	}
	if err := s.checkConditions(tree); err != nil {
		return nil, err
	}
	return operations(tree.Action), checkKinds(tree)
}

// checkScope checks the names in one part of a policy's scope.
func checkScope(variable types.String, part ast.IsScopeNode) error {
	switch part := part.(type) {
	case ast.ScopeTypeEq:
		return checkEqual(variable, part.Entity)
	case ast.ScopeTypeIn:
		return checkBelongs(variable, part.Entity)
	case ast.ScopeTypeInSet:
		if len(part.Entities) == 0 {
			return emptyList("[]")
		}
		for _, e := range part.Entities {
			if err := checkBelongs(variable, e); err != nil {
				return err
			}
		}
	case ast.ScopeTypeIs:
		return checkIs(variable, part.Type)
	case ast.ScopeTypeIsIn:
		if err := checkIs(variable, part.Type); err != nil {
			return err
		}
		return checkBelongs(variable, part.Entity)
	}
	return nil
}

func emptyList(word string) error {
	return slipf([]string{word}, "an empty list [] has nothing in it: the policy would never apply")
}

// checkConditions checks the names in a policy's conditions, and notes what the policy depends on and how much work
// its evaluation is.
func (s *statement) checkConditions(tree *ast.Policy) (first error) {
	for _, c := range tree.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			if first == nil {
				first = checkNode(n)
			}
			s.note(n)
			return true
		})
	}
	return first
}

// note notes whether a condition may depend on the detail, and the work of its evaluation.
func (s *statement) note(n ast.IsNode) {
	s.work.nodes++
	switch n := n.(type) {
	case ast.NodeTypeLike, ast.NodeTypeEquals, ast.NodeTypeNotEquals:
		s.work.texts++
	case ast.NodeTypeAccess:
		if v, ok := n.Arg.(ast.NodeTypeVariable); ok && v.Name == "context" && n.Value != "detail" && n.Value != "host" {
			s.constant++
		}
	case ast.NodeTypeHas:
		if v, ok := n.Arg.(ast.NodeTypeVariable); ok && v.Name == "context" {
			s.constant++
		}
	case ast.NodeTypeVariable:
		if n.Name == "context" {
			s.contexts++
		}
	}
}

// attributes are the attributes of the variables.
var attributes = map[types.String][]string{"principal": {"authenticated", "service"}, "resource": {"owner"},
	"context": {"detail", "host", "line", "port", "simple"}, "action": {}}

// kinds are the types of attributes, of which values of another type are never equal.
var kinds = map[types.String]string{"principal.authenticated": "true or false", "principal.service": "true or false",
	"resource.owner": "a text", "context.detail": "a text", "context.host": "a text", "context.line": "a text",
	"context.port": "a number", "context.simple": "true or false"}

// checkKind checks whether a value can be equal to an attribute; another node always can.
func checkKind(attribute ast.IsNode, v types.Value) error {
	a, ok := attribute.(ast.NodeTypeAccess)
	if !ok {
		return nil
	}
	path := nameOf(a.Arg) + "." + a.Value
	kind, given := kinds[path], "an entity"
	switch v.(type) {
	case types.String:
		given = "a text"
	case types.Long:
		given = "a number"
	case types.Boolean:
		given = "true or false"
	}
	if kind == "" || kind == given {
		return nil
	}
	return slipf([]string{string(path)}, "%s is %s, and never equal to %s", path, kind, v.MarshalCedar())
}

// checkContains checks whether what a list should contain can be equal to what it has.
func checkContains(n ast.NodeTypeContains) error {
	list, _ := n.Left.(ast.NodeTypeSet)
	for _, e := range list.Elements {
		if err := checkEquality(e, n.Right); err != nil {
			return err
		}
	}
	return nil
}

// checkNode checks the names in one node of a condition.
func checkNode(n ast.IsNode) error {
	switch n := n.(type) {
	case ast.NodeValue:
		return checkEntities(n.Value)
	case ast.NodeTypeAccess:
		return checkAttribute(n.Arg, n.Value)
	case ast.NodeTypeHas:
		return checkAttribute(n.Arg, n.Value)
	case ast.NodeTypeHasTag, ast.NodeTypeGetTag:
		return slipf([]string{"hasTag", "getTag"}, "nothing has tags here")
	case ast.NodeTypeIs:
		return checkIs(nameOf(n.Left), n.EntityType)
	case ast.NodeTypeIsIn:
		if err := checkIs(nameOf(n.Left), n.EntityType); err != nil {
			return err
		}
		return checkIn(n.Left, n.Entity)
	case ast.NodeTypeIn:
		return checkIn(n.Left, n.Right)
	case ast.NodeTypeEquals:
		return checkEquality(n.Left, n.Right)
	case ast.NodeTypeNotEquals:
		return checkEquality(n.Left, n.Right)
	case ast.NodeTypeContains:
		return checkContains(n)
	case ast.NodeTypeSet:
		if len(n.Elements) == 0 {
			return emptyList("[]")
		}
	}
	return nil
}

// nameOf returns the name of a variable; empty: the node is no variable.
func nameOf(n ast.IsNode) types.String {
	v, _ := n.(ast.NodeTypeVariable)
	return v.Name
}

// checkAttribute checks the name of an attribute of what a node stands for.
func checkAttribute(of ast.IsNode, name types.String) error {
	switch of := of.(type) {
	case ast.NodeTypeVariable:
		known := attributes[of.Name]
		if slices.Contains(known, string(name)) {
			return nil
		}
		words := []string{string(of.Name + "." + name), string(name)}
		if len(known) == 0 {
			return slipf(words, "%s has no attributes, such as %q", of.Name, fault.Clip(string(name)))
		}
		return slipf(words, "%s has no attribute %q (there are %s)%s", of.Name, fault.Clip(string(name)),
			strings.Join(known, ", "), fault.DidYouMean(string(name), known))
	case ast.NodeValue:
		if e, ok := of.Value.(types.EntityUID); ok {
			return slipf([]string{`"` + string(e.ID) + `"`, string(name)}, "the attributes of %s are not known: only "+
				"principal and resource have some", e)
		}
	case ast.NodeTypeAccess:
		return slipf([]string{string(of.Value + "." + name), string(name)}, "%s has no attributes, such as %q",
			of.Value, fault.Clip(string(name)))
	}
	return nil
}

// checkIn checks what stands on the right of `in`.
func checkIn(left, right ast.IsNode) error {
	list := []ast.IsNode{right}
	if set, ok := right.(ast.NodeTypeSet); ok {
		list = set.Elements
	}
	for _, n := range list {
		if v, ok := n.(ast.NodeValue); ok {
			if e, ok := v.Value.(types.EntityUID); ok {
				if err := checkBelongs(nameOf(left), e); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkEquality checks that the sides of == or != can be equal.
func checkEquality(left, right ast.IsNode) error {
	for _, sides := range [][2]ast.IsNode{{left, right}, {right, left}} {
		v, ok := sides[1].(ast.NodeValue)
		if !ok {
			continue
		}
		if e, ok := v.Value.(types.EntityUID); ok {
			if err := checkEqual(nameOf(sides[0]), e); err != nil {
				return err
			}
		}
		if err := checkKind(sides[0], v.Value); err != nil {
			return err
		}
		a, ok := sides[0].(ast.NodeTypeAccess)
		text, isText := v.Value.(types.String)
		if ok && isText && nameOf(a.Arg) == "resource" && a.Value == "owner" && text != "" {
			if err := checkPrincipal(string(text), string(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEntities checks the entities that a value has.
func checkEntities(v types.Value) error {
	if e, ok := v.(types.EntityUID); ok {
		return checkEntity(e)
	}
	return nil
}

// resourceNames are the names of the types of resources, sorted.
var resourceNames = func() (names []string) {
	for _, t := range slices.Sorted(maps.Values(resourceTypes)) {
		names = append(names, string(t))
	}
	return names
}()

// wordsOf are texts by which an entity is found in a policy.
func wordsOf(e types.EntityUID) []string {
	return []string{string(e.Type) + `::"` + string(e.ID) + `"`, `"` + string(e.ID) + `"`, string(e.Type)}
}

// checkEntity checks the type and the id of an entity.
func checkEntity(e types.EntityUID) error {
	words, id := wordsOf(e), string(e.ID)
	switch {
	case e.Type == roleType:
		if _, err := auth.ParseRole(id); err != nil {
			return slip{err, words}
		}
	case e.Type == principalType:
		return checkPrincipal(id, words[0])
	case e.Type == actionType:
		if !isNoun(id) && !policy.Operation(id).Known() {
			return slipf(words, "there is no operation %q%s", fault.Clip(id), fault.DidYouMean(id, policy.Operations()))
		}
	case e.Type == quotaType:
		return checkPrincipal(id, words[0])
	case e.Type == serverType && id != "":
		return slipf(words, `the resource of what is about no other one is Server::""`)
	case !slices.Contains(resourceNames, string(e.Type)):
		known := append([]string{string(principalType), string(roleType), string(actionType)}, resourceNames...)
		return slipf([]string{string(e.Type) + "::", string(e.Type)}, "there is no type %s (there are %s)%s", e.Type,
			strings.Join(known, ", "), fault.DidYouMean(string(e.Type), known))
	}
	return nil
}

// checkPrincipal checks the name of a principal.
func checkPrincipal(text, word string) error {
	id, err := auth.ParseID(text)
	if err != nil {
		return slip{err, []string{word}}
	}
	if name(id) != text {
		return slipf([]string{word}, "Principal::%q is written Principal::%q", text, name(id))
	}
	return nil
}

// isNoun reports whether a text is the noun of operations, such as "file".
func isNoun(text string) bool {
	return slices.ContainsFunc(policy.Operations(), func(o string) bool { return strings.HasPrefix(o, text+".") })
}

// checkEqual checks whether a variable can be equal to an entity.
func checkEqual(variable types.String, e types.EntityUID) error {
	if variable == "action" && e.Type == actionType && isNoun(string(e.ID)) {
		return slipf(wordsOf(e), "Action::%q has all of its operations in it: write `action in Action::%q`", e.ID, e.ID)
	}
	if variable == "principal" && e.Type == roleType {
		return slipf(wordsOf(e), "no principal is a role: write `principal in Role::%q`", e.ID)
	}
	return checkBelongs(variable, e)
}

// checkBelongs checks whether a variable can be in an entity; empty: it is no variable.
func checkBelongs(variable types.String, e types.EntityUID) error {
	words := wordsOf(e)
	switch {
	case variable == "principal" && e.Type != principalType && e.Type != roleType:
		return slipf(words, `there is no type %s for principals: there are Principal::"ann" and Role::"operator"`,
			e.Type)
	case variable == "action" && e.Type != actionType:
		return slipf(words, "there is no type %s for actions: they are Action::\"shell.execute\"", e.Type)
	case variable == "resource":
		if err := checkIs(variable, e.Type); err != nil {
			return err
		}
	}
	return checkEntity(e)
}

// checkIs checks whether a variable can be of a type; empty: it is no variable.
func checkIs(variable types.String, t types.EntityType) error {
	words := []string{"is " + string(t), string(t)}
	switch {
	case variable == "principal" && t != principalType:
		return slipf(words, "a principal is no %s: principals are of the type Principal", t)
	case variable == "action" && t != actionType:
		return slipf(words, "there is no type %s for actions: they are of the type Action", t)
	case variable == "resource" && !slices.Contains(resourceNames, string(t)):
		return slipf(words, "there is no type %s for resources: there are %s", t, strings.Join(resourceNames, ", "))
	case variable == "":
		return checkEntity(types.NewEntityUID(t, typeOnly[t]))
	}
	return nil
}

// typeOnly has an id for each type with which checkEntity checks the type alone.
var typeOnly = map[types.EntityType]types.String{roleType: types.String(auth.Operator), principalType: "local",
	quotaType: "local", actionType: types.String(policy.ShellExecute)}

// operations returns the operations of a scope. The parent of an action is its noun: `action in Action::"file"`.
func operations(part ast.IsActionScopeNode) (found []policy.Operation) {
	var named []types.EntityUID
	switch part := part.(type) {
	case ast.ScopeTypeAll:
		for _, o := range policy.Operations() {
			found = append(found, policy.Operation(o))
		}
		return found
	case ast.ScopeTypeEq:
		named = []types.EntityUID{part.Entity}
	case ast.ScopeTypeIn:
		named = []types.EntityUID{part.Entity}
	case ast.ScopeTypeInSet:
		named = part.Entities
	}
	for _, o := range policy.Operations() {
		noun, _, _ := strings.Cut(o, ".")
		if slices.ContainsFunc(named, func(e types.EntityUID) bool {
			return e.ID == types.String(o) ||
				e.ID == types.String(noun)
		}) {
			found = append(found, policy.Operation(o))
		}
	}
	return found
}

// lineOf returns the line of the first of some words that a policy has outside of comments, counted from the
// beginning of the text; else that of the policy.
func lineOf(text string, from, to, line int, words []string) int {
	source := []byte(text[from:to])
	quoted := false
	for i := 0; i < len(source); i++ {
		switch c := source[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && c == '/' && i+1 < len(source) && source[i+1] == '/':
			for ; i < len(source) && source[i] != '\n'; i++ {
				source[i] = ' '
			}
		}
	}
	for _, word := range words {
		if i := strings.Index(string(source), word); i >= 0 {
			return line + strings.Count(string(source[:i]), "\n")
		}
	}
	return line
}
