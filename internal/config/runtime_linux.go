package config

// defaultRuntime is the runtime of settings that name none.
const defaultRuntime = "gvisor"
