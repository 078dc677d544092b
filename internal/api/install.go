package api

import (
	"net/http"
	"os"

	"sandlot/internal/api/protocol"
	"sandlot/internal/clientconfig"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// placeholder stands for the user's token, which no response contains.
const placeholder = "YOUR_TOKEN"

// guidanceList lists the clients that guidance knows.
func guidanceList(hub.None) (protocol.GuidanceList, error) {
	list := protocol.GuidanceList{Clients: []protocol.GuidanceRow{}}
	for _, c := range clientconfig.All() {
		list.Clients = append(list.Clients,
			protocol.GuidanceRow{Client: c.ID, Title: c.Title, File: c.Files(), Path: "/install/" + c.ID})
	}
	return list, nil
}

// guidance returns how to add this server to the configuration of one client. The query may have
// url, at which the client reaches this server, and name, which the server gets in the client. The
// default url is PublicURL, or else the address of the request, which a proxy may have changed.
func (s *Server) guidance(r *http.Request) (*protocol.Guidance, error) {
	c, err := clientconfig.Find(r.PathValue("client"))
	if err != nil {
		return nil, err
	}
	server := clientconfig.Server{Name: "sandlot", URL: r.URL.Query().Get("url"), Args: []string{"stdio"}}
	if n := r.URL.Query().Get("name"); n != "" {
		server.Name = n
	}
	if server.URL == "" {
		base, ok := s.baseURL(r)
		if !ok {
			return nil, fault.Argument("url", "a request over the socket does not show the URL by which "+
				"clients reach this server: add ?url=http://localhost:8000/mcp")
		}
		server.URL = base + "/mcp"
	}
	tokenRequired, err := s.Authenticator.TokenRequired(r.Context())
	if err != nil {
		return nil, err
	}
	if tokenRequired {
		server.Token = placeholder
	}
	if server.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	if err := c.Check(&server); err != nil {
		return nil, fault.Wrap(fault.InvalidParameters, err, "%v", err)
	}
	return &protocol.Guidance{Client: c.ID, Title: c.Title, Name: server.Name, File: c.Files(),
		Config: c.Config(server), Text: c.Text(server),
		Command: c.Command(server), Steps: instructions(c, tokenRequired)}, nil
}

// instructions returns the steps for the user.
func instructions(c clientconfig.Client, tokenRequired bool) []string {
	first := "Merge config into the client's file, and leave all else in it as it is; "
	if c.Command(clientconfig.Server{Name: "x", URL: "http://x/"}) != "" {
		first = "Run command, or merge config into the client's file and leave all else in it as it is; "
	}
	list := []string{first + "`sandlot install " + c.ID + "` does that on the server's machine."}
	if c.StdioOnly() {
		list = append(list, "The program's path is that on the server's machine; on another one, put the path of its "+
			"own sandlot there.")
	}
	if tokenRequired {
		list = append(list, "Put your token in the place of "+placeholder+"; the operator makes one with "+
			"`sandlot token create --user NAME`.")
	}
	return append(list, c.Next)
}
