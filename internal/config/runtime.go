package config

import "sandlot/internal/platform"

// defaultRuntime returns the runtime of settings that name none: gVisor needs Linux.
func defaultRuntime() string {
	if platform.IsLinux {
		return "gvisor"
	}
	return "docker"
}
