package auth

import "sandlot/internal/fault"

// UserHeader is the header in which a service with a token made with --acts-for names the user for whom
// it makes a request.
const UserHeader = "Sandlot-User"

// ActFor returns the principal of a request with those values of UserHeader, which p has authenticated:
// p itself if there is none, and otherwise the user of the service. The user's request has the token and
// the scope of the service, and none of its roles. A header that p may not send is an error: without
// it the request would have another meaning.
func (p Principal) ActFor(users []string) (Principal, error) {
	if len(users) == 0 {
		return p, nil
	}
	if !p.ActsFor {
		return Principal{}, fault.New(fault.Forbidden,
			"the header %s names the user of a service, and this request is not one of such a service", UserHeader).
			Advise("Leave the header "+UserHeader+" out",
				"The operator makes a token that may send it: sandlot token create --user NAME --service --acts-for")
	}
	if len(users) > 1 {
		return Principal{}, fault.New(fault.InvalidParameters, "the request has %d headers %s; send one", len(users),
			UserHeader)
	}
	if !userNamePattern.MatchString(users[0]) {
		return Principal{}, fault.New(fault.InvalidParameters, "the header %s has %q: %s", UserHeader,
			fault.Clip(users[0]), userNameRule)
	}
	user := serviceUser(p.ID, users[0])
	user.Token, user.Scope = p.Token, p.Scope
	return user, nil
}
