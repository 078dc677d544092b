package wire

// InitCommand is the agent's command that is the first process of a virtual machine: it mounts the sandbox's file
// systems, starts the agent in namespaces of its own, and carries its connections over a port of the machine.
const InitCommand = "init"

// MachineStartCommand is the command by which InitCommand starts the agent, in the new namespaces.
const MachineStartCommand = "init-agent"

// Names of a virtual machine's ports to the host. Over LinkPort the agent's connections are carried. ControlPort carries
// MachineCalls of the host, and a MachineReply to each, as lines of JSON. Over ExportPort goes what MachineExport writes.
const (
	LinkPort    = "sandlot.link"
	ControlPort = "sandlot.control"
	ExportPort  = "sandlot.export"
)

// Serial numbers of a virtual machine's disks. BootDisk begins with the length of a Machine in JSON, as a uint64 (big
// endian). RootDisk is an EROFS. ScratchDisk is an ext4 for what the sandbox writes. Those of volumes have the names that
// Machine says.
const (
	BootDisk    = "boot"
	RootDisk    = "root"
	ScratchDisk = "scratch"
)

// ModulesFile of the first file system of a virtual machine has the paths of the kernel modules to load, in that
// order, one in a line.
const ModulesFile = "/modules/order"

// Machine is what the first process of a virtual machine has to set up.
type Machine struct {
	Env          []string          `json:"env"`          // of the agent
	Capabilities uint64            `json:"capabilities"` // of the agent's bounding set, as bits
	Processes    int64             `json:"processes"`    // of the sandbox, with the agent's threads; 0: no limit
	Memory       int64             `json:"memory"`       // bytes of the sandbox, with the agent's; 0: no limit
	FileBytes    uint64            `json:"file_bytes"`   // bytes of one file; 0: no limit
	Volumes      []MachineVolume   `json:"volumes"`
	Files        map[string][]byte `json:"files"`   // by path, without a leading slash
	Folders      []string          `json:"folders"` // further ones, without a leading slash
}

// MachineVolume is a disk with an ext4 of a virtual machine.
type MachineVolume struct {
	Disk     string `json:"disk"` // its serial number
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

// What the host asks of the first process of a virtual machine. MachineHello: to say that it is ready. MachineCut: to
// end what carries the agent's connections, before the host opens the link's port. MachineCarry: to carry them, now that
// it is open. MachineStop: to end the sandbox, to write all to the disks and to switch the machine off. MachineExport: to
// write an archive of what was written outside the volumes to the port for it, which the host has opened, as chunks, each
// after its length (uint32, big endian); an empty one ends it. MachineWoken: the machine has slept, and has Now and,
// if it is a copy or has another server, Secret.
const (
	MachineHello  = "hello"
	MachineCut    = "cut"
	MachineCarry  = "carry"
	MachineStop   = "stop"
	MachineExport = "export"
	MachineWoken  = "woken"
)

// MachineCall is one call of the host.
type MachineCall struct {
	Number int64  `json:"number"`
	Do     string `json:"do"`
	Now    int64  `json:"now,omitempty"`    // Unix time in nanoseconds
	Secret string `json:"secret,omitempty"` // the agent's, in hexadecimal
	Random []byte `json:"random,omitempty"` // for the kernel's random numbers
}

// MachineReply answers a call. The host trusts nothing of it.
type MachineReply struct {
	Number int64  `json:"number"`
	Error  string `json:"error,omitempty"`
}

// MaxMachineLine bounds one line of ControlPort, in bytes.
const MaxMachineLine = 64 << 10
