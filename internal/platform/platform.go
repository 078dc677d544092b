// Package platform says which system the server is for. It is the machine's own, except in a program that is built with
// the tag mac: on Linux, that has what a Mac has, and no more (no gVisor, no template host, a Mac's paths), so that
// tests on Linux run what a Mac runs.
package platform

// IsLinux reports whether sandboxes can be made of this machine: of its kernel, by gVisor, and of its programs.
const IsLinux = System == "linux"
