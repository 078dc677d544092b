//go:build mac

package platform

// System is the system that the server is for, as in runtime.GOOS.
const System = "darwin"
