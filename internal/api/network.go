package api

import (
	"net/http"

	"sandlot/internal/hub"
)

func quotaOwner(_ http.ResponseWriter, r *http.Request) (hub.QuotaOwner, error) {
	return hub.QuotaOwner(r.URL.Query().Get("principal")), nil
}

// networkChange reads the change of a session's network.
func networkChange(w http.ResponseWriter, r *http.Request) (c hub.NetworkChange, err error) {
	err = decode(w, r, 1<<20, &c, "mode, allow, deny, reset or recount")
	c.SessionID = hub.SessionID(r.PathValue("id"))
	return c, err
}
