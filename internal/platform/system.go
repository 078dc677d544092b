//go:build !mac

package platform

import "runtime"

// System is the system that the server is for, as in runtime.GOOS.
const System = runtime.GOOS
