package policy

import (
	"regexp"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

func TestDecide(t *testing.T) {
	open := auth.Local
	open.WithoutToken = true
	ann := auth.User("ann", false)
	measures := ann
	measures.Roles = auth.NewRoles(auth.Metrics)
	eve := auth.User("eve", false)
	eve.Roles = auth.NewRoles(auth.Operator)
	nobody := auth.Principal{}
	const yes = fault.Kind(-1)
	for _, c := range []struct {
		p     auth.Principal
		op    Operation
		owner string
		want  fault.Kind
	}{
		{ann, ShellExecute, "", yes}, {ann, FileRead, "user:ann", yes}, {auth.Local, FileRead, "local", yes},
		{ann, FileRead, "user:bob", fault.NotFound}, {open, FileRead, "user:bob", fault.NotFound},
		{eve, NetworkRead, "user:bob", yes}, {ann, NetworkRead, "user:bob", fault.NotFound},
		{ann, NetworkRead, "user:ann", yes},
		{eve, QuotaRead, "user:bob", yes}, {ann, QuotaRead, "user:bob", fault.NotFound},
		{ann, QuotaRead, "user:ann", yes},
		{eve, FileRead, "user:bob", fault.NotFound}, {eve, SessionStop, "user:bob", fault.NotFound},
		{auth.SocketOwner(), ShellExecute, "user:bob", fault.NotFound},
		{nobody, ShellExecute, "", fault.Unauthorized}, {nobody, HealthRead, "", yes}, {nobody, LoginBegin, "", yes},
		{nobody, PortVisit, "user:bob", yes},
		{auth.SocketOwner(), SessionStopAll, "", yes}, {eve, SessionStopAll, "", yes},
		{open, SessionStopAll, "", fault.Forbidden}, {ann, SessionStopAll, "", fault.Forbidden},
		{eve, NetworkChange, "user:bob", yes}, {ann, NetworkChange, "user:ann", fault.Forbidden},
		{ann, NetworkReadAll, "", fault.Forbidden},
		{ann, MetricsRead, "", fault.Forbidden}, {measures, MetricsRead, "", yes}, {auth.Local, MetricsRead, "", yes},
		{open, MetricsRead, "", yes},
		{auth.Local, "no.such", "", fault.Internal}, {nobody, "", "", fault.Internal},
	} {
		err := Decide(Question{Principal: c.p, Operation: c.op, Resource: Resource{Kind: "file", Owner: c.owner}}).Err()
		if (err == nil) != (c.want == yes) || err != nil && !fault.Is(err, c.want) {
			t.Errorf("%q (open %v) asks for %s of %q: %v", c.p.ID, c.p.WithoutToken, c.op, c.owner, err)
		}
	}
	if err := (Decision{}).Err(); !fault.Is(err, fault.Forbidden) {
		t.Errorf("what nobody decided is %v", err)
	}
}

func TestNames(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+\.[a-z_]+$`)
	for o, r := range table {
		if !name.MatchString(string(o)) {
			t.Errorf("%q is not a name of an operation", o)
		}
		if o.Changes() != r.changes || !o.Known() {
			t.Errorf("%s is not what the table says", o)
		}
	}
}
