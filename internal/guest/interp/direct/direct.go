// Package direct is the sandbox's side of direct connections for code: over such a connection
// the host sends short cells to the driver of an interpreter, and the driver answers, without
// the agent. The host's side is sandlot/internal/agent/direct, the driver's side is the class
// Direct in drivers/python.py. This comment is the protocol of the three.
//
// # The connection
//
// The driver dials the host with a ticket when the agent tells it to. The host sends a cell only
// after it has read the answer to the one before.
//
//	host → driver   "ID SIZE LIMIT\n" and SIZE bytes of code; SIZE -1: warm up
//	driver → host   "SIZE OUT ERR\n", SIZE bytes of JSON (wire.Reply), OUT bytes of
//	                stdout and ERR of stderr; or "0 0 0\n": a handover, the agent ends the cell
//
// ID has 53 bits. The last 16 are the number of the cell: cells of a connection are counted
// from 1. The others are random, as code of the user must not guess the id of another cell.
// LIMIT is how many bytes of each stream, and of the value, the answer may have.
//
// A cell that ends within 15 ms with little output involves only the driver and the host. For
// any other cell the host asks the agent, over the link, to supervise it: after 15 ms, or when
// the driver hands the cell over. The agent answers that the cell is over (then the driver
// answers the host), or it supervises the cell: it reads the output, enforces the timeout, reads
// the driver's answer from its own pipe, and answers the host. When the host gives a cell up it
// asks the agent once more, to stop the cell, and sends the next cell after the answer.
//
// # The shared words
//
// The agent and the driver share memory, in which they agree, without a system call, on which
// of them reads the output of a cell and which of them answers. Each word has one writer.
//
//	word                            writer  value
//	state                           driver  running before a cell, finishing after it, running
//	                                        again for a handover, idle at the end; and in the
//	                                        upper 16 bits the number of the cell, 0 at first
//	requested                       agent   1 before it reads state in order to supervise; 0
//	                                        when the cell was over, and at the end of a cell
//	                                        that it supervised
//	supervised                      agent   1 once it supervises the cell; 0 at the end
//	readingStdout, readingStderr    agent   1 before it reads state in order to read that
//	                                        stream between cells; 0 after it has read
//	bufferedStdout, bufferedStderr  agent   1 while it has output of the stream for the next cell
//	handover                        agent   1 while the driver is to hand over the end of each
//	                                        cell
//	signalsSent                     agent   how many SIGINT it has sent; written before it sends
//
// The driver has a fence between writing running or finishing and its next read of a word. Each
// atomic operation of the agent is a fence, too. So when both write a word and then read the
// other's, at least one of them sees what the other has written:
//
//	the driver  after running, waits while the agent reads a stream
//	the driver  after finishing, waits while requested is 1 and supervised is 0
//	the agent   after requested, supervises the cell if it is the one after the last that
//	            began, or the last one and running; otherwise the cell is over
//	the agent   reads a stream between cells only while state is idle
//
// # The states
//
//	state      supervised  who reads the output           who answers
//	idle       0           the agent, for the next cell   nobody: there is no cell
//	running    0           nobody; it stays in the pipe   not decided yet
//	running    1           the agent, for this cell       the driver the agent, the agent the host
//	finishing  0           the driver, before it answers  the driver the host, once requested is 0
//	finishing  1           the agent, for this cell       the driver the agent, the agent the host
//	idle       1           the agent, for this cell       the driver has answered the agent
//
// At the end of a cell that is not supervised the driver reads the output, writes idle, and
// answers the host, in this order: the agent reads what is written to the streams afterwards.
// The driver hands the cell over instead (it writes running, sends "0 0 0\n", and waits for
// supervised) when the answer is too large, when the agent has buffered output or has set
// handover, or when the code has closed a file that the driver needs.
//
// The test in model_test.go goes through every interleaving of the steps, with the driver's
// stores delayed as much as a processor may delay them. It checks that each cell is answered
// once, that no output is lost, and that the three never all wait.
//
// Code of the user can write to the memory, so the agent trusts it no more than anything else
// from a driver: wrong words harm only the owner of the sandbox.
//
// # Why
//
// Through agent and pipe, one byte took 1.5 to 1.8 ms to Python and back in gVisor, and takes 0.3 to 0.4 ms
// directly: a warm cell is one system call to read the code, one to see what was written, and one to answer.
// The price is a second way for cells, in the driver, the agent and the host; the suite of runtimes compares
// every field of both ("Direct"). The first version had two errors, which the test of all interleavings
// found, both with the interpreter's lock held by another thread: so number and state are one word, and cells
// are numbered. Standard input and output of MCP servers, and files of 4 MiB and more, have direct
// connections too, without this protocol.
package direct
