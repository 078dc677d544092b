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
	NetWho                        // no request, but whose the request was that was refused before it
)

// NetRequest is one request on a connection that began with NetGreeting. Its fields come from
// the sandbox, and are not checked.
//
// Each TCP connection of a sandbox is a Unix connection of its own, and no stream of the link: the link stays
// strict, no download delays a call or another connection, and the kernel does flow control and half-close.
// The socket says which sandbox it is. A killed server and a cut by the policy look the same inside, and
// different from a normal end: a hang-up of both directions (POLLHUP), which the agent passes on as a reset,
// so that no program takes half a file for a whole one. The price is that a connect goes through gVisor's
// file server, which is slower than a stream: so the agent keeps a few greeted connections ready, and the
// host bounds the idle ones and the rate of greetings.
type NetRequest struct {
	Kind     NetKind
	Name     string // as the program looked it up
	Address  []byte // for NetConnect, in place of the name
	Port     uint32 // for NetConnect
	Who      Who    // for NetWho
	TellsWho bool   // if the reply asks so, a NetWho is the next request
}

// Who is a program of the sandbox. Its fields come from the sandbox, and are not checked.
type Who struct {
	PID     uint32 // in the sandbox; 0: not known
	Name    string // of the process, as in /proc/PID/comm
	Process string // the id of what the agent has started, to which it belongs; empty: to nothing
	Server  string // what stands for the third-party server to which it belongs; empty: to none
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
	AsksWho bool   // the next request is to be a NetWho
}

// ReadNetRequest reads what WriteNetRequest wrote.
func ReadNetRequest(r io.Reader) (NetRequest, error) {
	m := new(agentv1.NetRequest)
	if err := ReadBounded(r, m, MaxNetMessage); err != nil {
		return NetRequest{}, err
	}
	q := NetRequest{TellsWho: m.TellsWho}
	switch k := m.Kind.(type) {
	case *agentv1.NetRequest_Connect:
		q.Kind, q.Name, q.Address, q.Port = NetConnect, k.Connect.GetName(), k.Connect.GetAddress(), k.Connect.GetPort()
	case *agentv1.NetRequest_Lookup:
		q.Kind, q.Name = NetLookup, k.Lookup.GetName()
	case *agentv1.NetRequest_Who:
		q.Kind = NetWho
		q.Who = Who{k.Who.GetPid(), k.Who.GetName(), k.Who.GetProcess(), k.Who.GetServer()}
	}
	return q, nil
}

// WriteNetRequest sends a request to the host.
func WriteNetRequest(w io.Writer, q NetRequest) error {
	m := &agentv1.NetRequest{TellsWho: q.TellsWho}
	switch q.Kind {
	case NetConnect:
		m.Kind = &agentv1.NetRequest_Connect{Connect: &agentv1.NetConnect{Name: q.Name, Address: q.Address,
			Port: q.Port}}
	case NetLookup:
		m.Kind = &agentv1.NetRequest_Lookup{Lookup: &agentv1.NetLookup{Name: q.Name}}
	case NetWho:
		m.Kind = &agentv1.NetRequest_Who{Who: &agentv1.NetWho{Pid: q.Who.PID, Name: q.Who.Name,
			Process: q.Who.Process, Server: q.Who.Server}}
	}
	return WriteMessage(w, m)
}

// ReadNetReply reads what WriteNetReply wrote.
func ReadNetReply(r io.Reader) (NetReply, error) {
	m := new(agentv1.NetReply)
	if err := ReadBounded(r, m, MaxNetMessage); err != nil {
		return NetReply{}, err
	}
	return NetReply{Code: NetCode(m.Code), Message: m.Message, AsksWho: m.AsksWho}, nil
}

// WriteNetReply sends a reply to the sandbox.
func WriteNetReply(w io.Writer, reply NetReply) error {
	return WriteMessage(w, &agentv1.NetReply{Code: agentv1.NetReply_Code(reply.Code), Message: reply.Message,
		AsksWho: reply.AsksWho})
}
