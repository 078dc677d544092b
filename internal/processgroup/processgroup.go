// Package processgroup starts programs of the host so that a program and all that it has started can be killed at once.
package processgroup
