package api

import (
	"net/http"
	"strconv"

	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// registrySearch reads a search in registries.
func registrySearch(_ http.ResponseWriter, r *http.Request) (s hub.RegistrySearch, err error) {
	q := r.URL.Query()
	s.Words, s.Registry = q.Get("search"), q.Get("registry")
	if text := q.Get("limit"); text != "" {
		if s.Limit, err = strconv.Atoi(text); err != nil || s.Limit < 1 {
			err = fault.Argument("limit", "limit must be from 1 to %d", hub.MaxRegistryResults)
		}
	}
	return s, err
}

// registryReference reads which entry of a registry is meant.
func registryReference(_ http.ResponseWriter, r *http.Request) (ref hub.RegistryReference, err error) {
	q := r.URL.Query()
	ref.Name, ref.Version, ref.Registry = r.PathValue("name"), q.Get("version"), q.Get("registry")
	return ref, nil
}

// registryChoice reads what a user chose of an entry.
func registryChoice(w http.ResponseWriter, r *http.Request) (c hub.RegistryChoice, err error) {
	err = decode(w, r, 1<<20, &c, "nothing but name, version, registry, way, server_name and values, whose values are texts")
	return c, err
}
