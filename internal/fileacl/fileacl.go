// Package fileacl says who may read or write a file of Windows, whose access rights are no modes. It has code for
// Windows alone.
package fileacl
