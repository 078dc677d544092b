package api

import (
	"net/http"
	"strconv"

	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

func quotaOwner(_ http.ResponseWriter, r *http.Request) (hub.QuotaOwner, error) {
	return hub.QuotaOwner(r.URL.Query().Get("principal")), nil
}

func usageQuery(w http.ResponseWriter, r *http.Request) (hub.UsageQuery, error) {
	days, err := usageDays(w, r)
	return hub.UsageQuery{Principal: r.URL.Query().Get("principal"), Days: int(days)}, err
}

func usageDays(_ http.ResponseWriter, r *http.Request) (hub.UsageDays, error) {
	text := r.URL.Query().Get("days")
	if text == "" {
		return 0, nil
	}
	days, err := strconv.Atoi(text)
	if err != nil || days == 0 {
		return 0, fault.Argument("days", "days is %q: it has to be a number from 1 to %d", fault.Clip(text),
			hub.MaxUsageDays)
	}
	return hub.UsageDays(days), nil
}

func tokenOwner(_ http.ResponseWriter, r *http.Request) (hub.TokenOwner, error) {
	return hub.TokenOwner(r.URL.Query().Get("principal")), nil
}

func rulesOwner(_ http.ResponseWriter, r *http.Request) (hub.RulesOwner, error) {
	return hub.RulesOwner(r.URL.Query().Get("principal")), nil
}

// newToken reads the token that is to be made. The body may be missing: it is as the request's token.
func newToken(w http.ResponseWriter, r *http.Request) (n hub.NewToken, err error) {
	err = decodeOptional(w, r, 64<<10, &n, "nothing but user, service, acts_for, roles, scope and expires_in")
	return n, err
}

// policyCheck reads the question what would happen.
func policyCheck(w http.ResponseWriter, r *http.Request) (c hub.PolicyCheck, err error) {
	err = decode(w, r, 64<<10, &c, "operation, and nothing else but detail, session_id, principal, service and roles")
	return c, err
}

// networkChange reads the change of a session's network.
func networkChange(w http.ResponseWriter, r *http.Request) (c hub.NetworkChange, err error) {
	err = decode(w, r, 1<<20, &c, "mode, allow, deny, reset or recount")
	c.SessionID = hub.SessionID(r.PathValue("id"))
	return c, err
}
