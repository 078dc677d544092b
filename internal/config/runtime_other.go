//go:build !linux

package config

// defaultRuntime is the runtime of settings that name none: gVisor needs Linux.
const defaultRuntime = "docker"
