package builtin

import (
	"context"
	"errors"
	"slices"
	"testing"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/once"
	"sandlot/internal/tool"
)

// noted is a door and a trail that knows what policy says later.
type noted struct {
	tool.Open
	refusal *error
}

func (n noted) Record(ctx context.Context) (context.Context, tool.Trail) { return ctx, n }
func (n noted) Recheck(context.Context, auth.Principal) error            { return *n.refusal }
func (noted) Size() int                                                  { return 1 << 10 }

// hiding is a door that does not show some paths.
type hiding struct {
	tool.Open
	paths []string
}

func (h hiding) Shows(_ context.Context, path string) bool { return !slices.Contains(h.paths, path) }

// A stored result, or a stored error, is given again only as long as policy allows all that its call did.
func TestStoredResultsAskPolicy(t *testing.T) {
	replies := once.New(once.Config[reply]{Size: reply.size})
	defer replies.Close()
	var refusal error
	ran := 0
	broken := fault.New(fault.CommandExecution, "it broke, and says secrets")
	call := func(key string, failed error) (*tool.Result, error) {
		c := tool.Call{Principal: auth.Local, Name: "x", Args: []byte(key)}.Through(noted{refusal: &refusal})
		return retryable(replies, func(context.Context, tool.Call, IdempotencyInput) (*tool.Result, error) {
			ran++
			return &tool.Result{Summary: "secrets"}, failed
		})(t.Context(), c, IdempotencyInput{IdempotencyKey: key})
	}
	for key, failed := range map[string]error{"done": nil, "failed": broken} {
		refusal, ran = nil, 0
		first, err := call(key, failed)
		again, errAgain := call(key, failed)
		if ran != 1 || !errors.Is(errAgain, err) || failed == nil && (first.Replayed || !again.Replayed ||
			again.Summary != first.Summary) {
			t.Errorf("%s: %d runs, %+v and %+v, %v and %v", key, ran, first, again, err, errAgain)
		}
		refusal = fault.New(fault.Forbidden, "a rule")
		if r, err := call(key, failed); r != nil || !errors.Is(err, refusal) || ran != 1 {
			t.Errorf("%s: after a rule: %+v, %v, %d runs", key, r, err, ran)
		}
	}
}

// A list leaves out what policy denies, and all below it, and says how much.
func TestListsWithholdWhatIsDenied(t *testing.T) {
	var files []agent.File
	for _, name := range []string{"a", "private", "private/x", "private/x/y", "sub", "sub/private", "sub/z", "../up"} {
		files = append(files, agent.File{Path: name})
	}
	c := tool.Call{}.Through(hiding{paths: []string{"/workspace/dir/private", "/workspace/dir/sub/z", "/workspace/up"}})
	shown, withheld := shownFiles(t.Context(), c, "dir", files)
	var names []string
	for _, f := range shown {
		names = append(names, f.Path)
	}
	if !slices.Equal(names, []string{"a", "sub", "sub/private"}) || withheld != 5 {
		t.Errorf("it shows %v, and withholds %d", names, withheld)
	}
	shown, withheld = shownFiles(t.Context(), tool.Call{}.Through(tool.Open{}), "dir", files)
	if len(shown) != len(files) || withheld != 0 {
		t.Errorf("without rules it shows %d and withholds %d", len(shown), withheld)
	}
}
