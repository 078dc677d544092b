// Package direct is the sandbox's side of the direct way for code: short cells go from
// the host to the driver of an interpreter, and their answers back, without the agent.
// The host's side is sandlot/internal/agent/direct, the driver's the class Direct in
// drivers/python.py. This page is the protocol of the three.
//
// # The connection
//
// The driver dials the host with a ticket, when the agent asks it to. One cell is on the
// way at a time: whoever sends the next one has read how the last one ended.
//
//	host → driver   "ID SIZE LIMIT\n" and SIZE bytes of code; SIZE -1: get ready
//	driver → host   "SIZE OUT ERR\n", SIZE bytes of JSON (wire.Reply), OUT bytes of
//	                stdout and ERR of stderr; or "0 0 0\n": the agent has the end
//
// ID has 53 bits. Its last 16 count the cells of the connection, from 1 on; those above
// are random, as code of the user must not guess the id of another cell. LIMIT is how many
// bytes of each stream, and of the value, the answer may have.
//
// A cell that is over within 15 ms and says little is the driver's and the host's alone.
// For all others the host asks the agent to supervise the cell, over the link: when the
// 15 ms are over, or the driver says that the agent has the end. The agent answers that
// the cell is over (then the driver answers the host), or supervises the cell: it reads
// the output, enforces the time limit, takes the driver's answer from its own pipe, and
// answers the host. A cell that the host gives up is asked for once more, to be stopped;
// the next one begins when that has been answered.
//
// # The shared words
//
// Who reads what a cell wrote, and who answers for it, the agent and the driver agree on
// in memory that they share, without a system call. Each word has one writer.
//
//	word                writer   written
//	state               driver   running before a cell, finishing after it, running once
//	                             more when the agent is to have the end, idle at last; and
//	                             in the upper 16 bits the number of the cell, 0 at first
//	asked               agent    1 before it looks at state; 0 when the cell was over, and
//	                             at the end of a cell that it supervised
//	supervised          agent    1 once it has decided to supervise; 0 at the end
//	readsOut, readsErr  agent    1 before it looks at state and reads that stream between
//	                             cells, 0 after it
//	keepsOut, keepsErr  agent    1 while it keeps output for the next cell
//	notify              agent    1 while it wants to have the end of each cell
//	signals             agent    how many SIGINT it has sent, before it sends one
//
// The driver puts a fence between writing running or finishing and what it reads next, and
// so does each atomic operation of the agent. So of two that each write a word and then
// look at the other's, one at least sees the other:
//
//	the driver      after running, waits while the agent reads a stream
//	the driver      after finishing, waits while the agent has asked and does not supervise
//	the agent       having asked, supervises if the cell is the one after the last that
//	                began, or the last one and running; otherwise it asks in vain
//	the agent       reads a stream between cells only while state is idle
//
// # The states
//
//	state      supervised  who reads the output          who answers
//	idle       0           the agent, for the next cell  nobody: there is no cell
//	running    0           nobody; it waits in the pipe  not decided
//	running    1           the agent, for this cell      the driver to the agent, it to the host
//	finishing  0           the driver, at the end        the driver to the host, once asked is 0
//	finishing  1           the agent, for this cell      the driver to the agent, it to the host
//	idle       1           the agent, for this cell      the driver has answered the agent
//
// At the end of a cell that nobody supervises the driver reads the output, writes idle, and
// answers the host, in this order: what is written to the streams afterwards is the agent's.
// It leaves the end to the agent instead (running, "0 0 0\n", and waiting for supervised)
// when there is too much to say, the agent keeps output or wants to be notified, or the code
// has closed what the driver needs.
//
// That each cell is answered once, that no output is lost, and that never all three wait, is
// searched through in model_test.go: every interleaving of the steps, with the driver's stores
// as late as its processor may make them.
//
// What stands in the memory is as little to be believed as everything else that a driver says:
// a wrong word misleads the owner of the sandbox alone.
package direct
