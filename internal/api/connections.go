package api

import (
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
)

// maxRequest bounds the body of a request about a server, in bytes.
const maxRequest = 4 << 20

// approval reads which tools are approved: those whose hash is still the one in the body; without a body all tools.
func approval(w http.ResponseWriter, r *http.Request) (hub.Approval, error) {
	q := hub.Approval{ServerName: hub.ServerName(r.PathValue("id"))}
	const expected = "nothing but tools, the hashes of what was seen by the server's names"
	err := decodeOptional(w, r, maxRequest, &q, expected)
	return q, err
}

func approved(_ *http.Request, i hub.ServerInfo) any {
	a := protocol.Approved{ConnectionID: i.ID, Name: i.Name, ToolCount: len(i.Tools), State: string(i.State),
		HeldTools: []protocol.HeldTool{}}
	for _, n := range i.Held {
		a.HeldTools = append(a.HeldTools, protocol.HeldTool{Remote: n.Remote, Reason: n.Why})
	}
	return a
}

// promptRequest reads the request for a prompt of a third-party server.
func promptRequest(w http.ResponseWriter, r *http.Request) (hub.PromptRequest, error) {
	q := hub.PromptRequest{ServerName: hub.ServerName(r.PathValue("id"))}
	err := decode(w, r, maxRequest, &q, "nothing but name and arguments, whose values are texts")
	return q, err
}

// resourceRequest reads the request for a resource of a third-party server.
func resourceRequest(w http.ResponseWriter, r *http.Request) (hub.ResourceRequest, error) {
	q := hub.ResourceRequest{ServerName: hub.ServerName(r.PathValue("id"))}
	err := decode(w, r, maxRequest, &q, "nothing but uri")
	return q, err
}
