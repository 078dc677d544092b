// Package pathwalk follows paths as the kernel does, and shows its caller each folder and each link on the way: who can
// write one of them decides where the path leads. It has code for Unix alone.
package pathwalk
