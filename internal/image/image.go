// Package image describes templates, from which sandboxes are created: languages, root file system and
// environment. It does not depend on the runtime that creates the sandboxes.
package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bind is a folder or file of the machine that is mounted read-only in the root file system.
type Bind struct {
	Source string // on the host, without symbolic links
	Target string // in the sandbox
	// Graft: it is a part of the root file system, where the runtime has layers: a sandbox sees what it wrote over it, as
	// over any other part. Elsewhere it is read-only.
	Graft bool `json:",omitempty"`
}

// Template describes the programs and files of sandboxes.
type Template struct {
	Name string
	// Rootfs is a folder with an unpacked root file system. If it is empty, the root file system consists
	// of Binds, Links and the few files that every program expects (/etc/passwd, /etc/hosts, /tmp …).
	Rootfs string
	Binds  []Bind
	// RootfsImage is the absolute path of a file with the root file system, as EROFS: flat, uncompressed and
	// unchanging. Sandboxes share it; what they write stays their own. It takes the place of Rootfs and Links.
	RootfsImage string
	// Image is the reference of the OCI image as the operator wrote it, and ImageID what the runtime calls the
	// image that it stands for. Both are empty for templates without an image.
	Image   string
	ImageID string
	// Links are symbolic links in the root file system: name → target.
	Links map[string]string
	// Folders are further folders in the root file system, empty and root's.
	Folders []string `json:",omitempty"`
	// Files has the contents of additional files by path, without a leading slash. They replace files of
	// the fields above. In a Rootfs, files that are only links to others by their hash are left out.
	Files     map[string][]byte
	Languages []Language
	// Env is the environment of all processes in the sandbox.
	Env map[string]string
	// Warm are the languages whose interpreters are started in sandboxes of the pool, before a session
	// gets them.
	Warm []string
	// Provides are names of other templates in place of which this one can be used.
	Provides []string
	// User is who runs commands, interpreters and third-party servers, and uses files. Zero: root.
	User User
	// Workdir is the folder in which commands start. Empty: /workspace.
	Workdir string
	// Runtime is the name of the runtime that makes the sandboxes. Empty: the default one.
	Runtime string
	// Flavor is the name of the flavor of sessions that ask for none. Empty: the default one.
	Flavor string
	// Pool is how many booted sandboxes wait for new sessions. Nil: as many as the settings say.
	Pool *int
	// Start are shell command lines that run in each sandbox that boots, before a session gets it.
	Start []string
	// ArchiveComes says that the server is still fetching the lists of a distribution's archive for the template.
	ArchiveComes bool `json:",omitempty"`
	// PackagesCome are the ready packages of Python and Node that the server is still installing for the template.
	PackagesCome []string `json:",omitempty"`
}

// User is a user of a sandbox, as its image's /etc/passwd and /etc/group say.
type User struct {
	UID, GID   uint32
	Groups     []uint32 // further groups
	Name, Home string
}

// IsRoot says whether the user is root in the sandbox.
func (u User) IsRoot() bool { return u.UID == 0 }

// AddFiles adds files, and environment variables that the template does not set itself.
func (t *Template) AddFiles(files map[string][]byte, env map[string]string) {
	all := map[string][]byte{}
	maps.Copy(all, t.Files)
	maps.Copy(all, files)
	t.Files = all
	t.Binds = slices.DeleteFunc(slices.Clone(t.Binds), func(b Bind) bool {
		for path := range files {
			if strings.HasPrefix("/"+path, b.Target+"/") {
				return true // the bind would hide the file
			}
		}
		return false
	})
	merged := maps.Clone(env)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, t.Env)
	t.Env = merged
}

// Serves reports whether a session with this template can execute a call that asks for the template name.
func (t *Template) Serves(name string) bool {
	return name == "" || name == t.Name || slices.Contains(t.Provides, name)
}

// Flavor is a size of sandboxes.
type Flavor struct {
	Name     string
	CPUs     float64
	MemoryMB int
}

// Covers reports whether a sandbox of flavor f is at least as large as one of flavor g.
func (f Flavor) Covers(g Flavor) bool { return f.CPUs >= g.CPUs && f.MemoryMB >= g.MemoryMB }

func (f Flavor) String() string {
	return fmt.Sprintf("%s (%g CPU, %d MB)", f.Name, f.CPUs, f.MemoryMB)
}
