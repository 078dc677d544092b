package wire

import (
	"io"

	"sandlot/proto/agentv1"
)

// NetKind is the kind of a NetRequest. Zero is a kind that this version does not know.
type NetKind int

// The kinds of requests.
const (
	NetConnect NetKind = iota + 1 // make a TCP connection
	NetLookup                     // look up whether the policy allows a name, and whether it exists
)

// NetRequest is one request on a connection that began with NetGreeting. Its fields come from
// the sandbox, and are not checked.
type NetRequest struct {
	Kind    NetKind
	Name    string // as the program looked it up
	Address []byte // for NetConnect, in place of the name
	Port    uint32 // for NetConnect
}

// NetCode is the outcome of a NetRequest.
type NetCode int32

// The outcomes.
const (
	NetOK          = NetCode(agentv1.NetReply_OK)
	NetRefused     = NetCode(agentv1.NetReply_REFUSED)     // by the policy
	NetNoName      = NetCode(agentv1.NetReply_NO_NAME)     // there is no such name
	NetUnreachable = NetCode(agentv1.NetReply_UNREACHABLE) // allowed, but it does not answer
	NetBusy        = NetCode(agentv1.NetReply_BUSY)        // a limit of the session is reached
	NetInvalid     = NetCode(agentv1.NetReply_BROKEN)      // the request is invalid
)

// NetReply answers a NetRequest.
type NetReply struct {
	Code    NetCode
	Message string // for the user
}

// ReadNetRequest reads what WriteNetRequest wrote.
func ReadNetRequest(r io.Reader) (NetRequest, error) {
	m := new(agentv1.NetRequest)
	if err := ReadBounded(r, m, MaxNetMessage); err != nil {
		return NetRequest{}, err
	}
	switch k := m.Kind.(type) {
	case *agentv1.NetRequest_Connect:
		return NetRequest{Kind: NetConnect, Name: k.Connect.GetName(), Address: k.Connect.GetAddress(),
			Port: k.Connect.GetPort()}, nil
	case *agentv1.NetRequest_Lookup:
		return NetRequest{Kind: NetLookup, Name: k.Lookup.GetName()}, nil
	}
	return NetRequest{}, nil
}

// WriteNetRequest sends a request to the host.
func WriteNetRequest(w io.Writer, q NetRequest) error {
	m := new(agentv1.NetRequest)
	switch q.Kind {
	case NetConnect:
		m.Kind = &agentv1.NetRequest_Connect{Connect: &agentv1.NetConnect{Name: q.Name, Address: q.Address,
			Port: q.Port}}
	case NetLookup:
		m.Kind = &agentv1.NetRequest_Lookup{Lookup: &agentv1.NetLookup{Name: q.Name}}
	}
	return WriteMessage(w, m)
}

// ReadNetReply reads what WriteNetReply wrote.
func ReadNetReply(r io.Reader) (NetReply, error) {
	m := new(agentv1.NetReply)
	if err := ReadBounded(r, m, MaxNetMessage); err != nil {
		return NetReply{}, err
	}
	return NetReply{Code: NetCode(m.Code), Message: m.Message}, nil
}

// WriteNetReply sends a reply to the sandbox.
func WriteNetReply(w io.Writer, reply NetReply) error {
	return WriteMessage(w, &agentv1.NetReply{Code: agentv1.NetReply_Code(reply.Code), Message: reply.Message})
}
