package cedar

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"sandlot/internal/policy"
)

// validator is Cedar's own, which knows the types of all attributes: it finds conditions that are no yes or no, and
// operators that a type does not have. It is permissive, as the strict one refuses lists with principals and roles.
var validator = sync.OnceValues(func() (*validate.Validator, error) {
	var text strings.Builder
	text.WriteString("entity Role;\nentity Principal in [Principal, Role] {service: Bool, authenticated: Bool};\n")
	for _, t := range resourceNames {
		fmt.Fprintf(&text, "entity %s {owner: String};\n", t)
	}
	var nouns []string
	for _, o := range policy.Operations() {
		noun, _, _ := strings.Cut(o, ".")
		if !slices.Contains(nouns, noun) {
			nouns = append(nouns, noun)
			fmt.Fprintf(&text, "action %q;\n", noun)
		}
		fmt.Fprintf(&text, "action %q in [%q] appliesTo {principal: [Principal], resource: [%s], context: {"+
			"detail: String, line: String, simple: Bool, host: String, port: Long}};\n", o, noun,
			strings.Join(resourceNames, ", "))
	}
	var s schema.Schema
	if err := s.UnmarshalCedar([]byte(text.String())); err != nil {
		return nil, err
	}
	resolved, err := s.Resolve()
	if err != nil {
		return nil, err
	}
	return validate.New(resolved, validate.WithPermissive()), nil
})

// checkKinds checks the types of the values in a policy's conditions.
func checkKinds(tree *ast.Policy) error {
	v, err := validator()
	if err != nil {
		return fmt.Errorf("the types of policies: %w", err)
	}
	conditions := ast.Permit()
	conditions.Action, conditions.Conditions = tree.Action, tree.Conditions
	if err := v.Policy("", conditions); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("its conditions do not fit: %s", first)
	}
	return nil
}
