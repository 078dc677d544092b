// Package proc knows the processes of this machine: on Linux, as /proc shows them; elsewhere, when a process started,
// whose it is, and whether it ends. A command line proves nothing: a user can start a process with any.
package proc
