package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/fault"
)

// ImageTemplate is the name of the template of the setting sandbox_image.
const ImageTemplate = "sandbox-image"

// runtimeNames are the runtimes that there are.
var runtimeNames = []string{"gvisor", "docker", "microsandbox"}

// Template describes the programs and files of sandboxes: a root file system, what is added to it, and its
// languages.
type Template struct {
	Name      string            `yaml:"-"`
	Rootfs    string            `yaml:"rootfs"` // an existing folder, without symbolic links
	Image     string            `yaml:"image"`  // the reference of an image, in place of Rootfs
	Packages  Packages          `yaml:"packages"`
	Files     Files             `yaml:"files"`
	Start     []string          `yaml:"start"` // shell command lines that run when a sandbox starts
	Env       map[string]string `yaml:"env"`
	Warm      []string          `yaml:"warm"`
	Provides  []string          `yaml:"provides"`
	Flavor    string            `yaml:"flavor"`  // of its sessions; empty: default_flavor
	Pool      *int              `yaml:"pool"`    // nil: pool_size
	Runtime   string            `yaml:"runtime"` // empty: the setting runtime
	Network   Rules             `yaml:"network"` // an empty Mode: network.mode of the settings applies
	Languages []Language        `yaml:"languages"`
}

// Packages are packages that are installed in a template's root file system.
type Packages struct {
	Pip []string `yaml:"pip" json:"pip,omitempty"`
	Npm []string `yaml:"npm" json:"npm,omitempty"`
	Apt []string `yaml:"apt" json:"apt,omitempty"`
}

// Empty reports whether there are none.
func (p Packages) Empty() bool { return len(p.Pip)+len(p.Npm)+len(p.Apt) == 0 }

// Built reports whether something is added to the template's root file system.
func (t *Template) Built() bool { return !t.Packages.Empty() || len(t.Files) > 0 }

// File is a file that is added to a template's root file system.
type File struct {
	Content []byte
	Mode    os.FileMode // permission bits
}

// Files are files by their absolute paths in the sandbox.
type Files map[string]File

// maxFile is the largest file of a template, and maxFiles what all of them may have, in bytes.
const (
	maxFile  = 8 << 20
	maxFiles = 64 << 20
)

// UnmarshalYAML reads files: a text, or the path of a file of the host.
func (f *Files) UnmarshalYAML(n *yaml.Node) error {
	nodes := map[string]yaml.Node{}
	if err := n.Decode(&nodes); err != nil {
		return errors.New("files: must be paths with a text, or with {file: PATH}")
	}
	*f = Files{}
	total := 0
	for _, target := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[target]
		file, err := parseFile(target, &node)
		if err != nil {
			return fmt.Errorf("files: %s: %w", target, err)
		}
		if total += len(file.Content); total > maxFiles {
			return fmt.Errorf("files: all together have more than %d MiB; put them into an image", maxFiles>>20)
		}
		(*f)[target] = file
	}
	return nil
}

// notKept are the folders and files of a sandbox that are not part of an image: what is mounted, what Sandlot writes,
// and what is temporary.
var notKept = []string{"/workspace", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/.sandlot", "/.venv",
	"/var/lib/sandlot", "/var/cache/apt", "/root/.cache", "/root/.npm", "/root/.local", "/root/.gitconfig",
	"/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/gitconfig", "/etc/gitignore"}

// NotKept returns the path by which a file of a sandbox, with a clean absolute path, does not become part of a
// template: its own, or that of a folder above it. It returns "" for a file that does.
func NotKept(file string) string {
	for _, own := range notKept {
		if file == own || strings.HasPrefix(file, own+"/") {
			return own
		}
	}
	return ""
}

func parseFile(target string, n *yaml.Node) (File, error) {
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" || strings.ContainsRune(target, 0) {
		return File{}, errors.New("the path in the sandbox must be absolute, and clean, such as /etc/app.conf")
	}
	switch own := NotKept(target); {
	case strings.HasPrefix(own, "/etc/"):
		return File{}, fmt.Errorf("Sandlot writes %s itself, for each sandbox", own)
	case own != "":
		return File{}, fmt.Errorf("%s is not kept in a template: it is each sandbox's own", own)
	}
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return checkFile(File{[]byte(n.Value), 0o644})
	}
	if err := checkKeys(n, "file", "text", "mode"); err != nil {
		return File{}, err
	}
	var given struct {
		File, Text string
		Mode       string
	}
	if err := n.Decode(&given); err != nil || (given.File == "") == (given.Text == "") {
		return File{}, errors.New("must be a text, or {file: PATH} or {text: TEXT}, each perhaps with mode: \"0755\"")
	}
	file, err := File{[]byte(given.Text), 0o644}, error(nil)
	if given.File != "" {
		file, err = readHostFile(given.File)
	}
	if given.Mode != "" && err == nil {
		if !regexp.MustCompile(`^0?[0-7]{3}$`).MatchString(given.Mode) {
			return File{}, fmt.Errorf("mode %q must be three octal digits, such as 0755", given.Mode)
		}
		fmt.Sscanf(given.Mode, "%o", &file.Mode)
	}
	if err != nil {
		return File{}, err
	}
	return checkFile(file)
}

func checkFile(f File) (File, error) {
	if len(f.Content) > maxFile {
		return f, fmt.Errorf("it has more than %d MiB; put it into an image", maxFile>>20)
	}
	return f, nil
}

// readHostFile reads a file of the host, with its permission bits.
func readHostFile(name string) (File, error) {
	if !filepath.IsAbs(name) {
		return File{}, fmt.Errorf("file %q must be an absolute path", name)
	}
	st, err := os.Stat(name)
	if err != nil {
		return File{}, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return File{}, fmt.Errorf("file %s must be a regular file of at most %d MiB", name, maxFile>>20)
	}
	text, err := os.ReadFile(name)
	return File{text, st.Mode().Perm()}, err
}

// Language is one of a template's languages. Driver is empty for a language that keeps no state
// between calls.
type Language struct {
	Name, Driver string
	Command      []string
	Extension    string
	Aliases      []string
}

func (c *Config) parseTemplates(n *yaml.Node) error {
	nodes := map[string]yaml.Node{}
	if err := n.Decode(&nodes); err != nil {
		return errors.New("must be names with an image, or with rootfs and languages")
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[name]
		if err := checkTemplateKeys(&node); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		node, t := nodes[name], Template{Name: name}
		err := node.Decode(&t)
		if err == nil {
			err = t.validate()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.Templates = append(c.Templates, t)
	}
	return nil
}

// templateName is what a template may be called, in at most maxTemplateName bytes: names become names of files, and of
// images, which are bounded as here.
var templateName = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)

const maxTemplateName = 63

// validate returns an error if a template is invalid, and resolves symbolic links in its rootfs.
func (t *Template) validate() error {
	if t.Name == "host" {
		return errors.New("the template host is the machine's; choose another name")
	}
	if len(t.Name) > maxTemplateName || !templateName.MatchString(t.Name) {
		return fmt.Errorf("a template's name has at most %d small letters, digits, and dots, dashes and underscores "+
			"in between", maxTemplateName)
	}
	for _, check := range []func() error{t.validateRoot, t.validateLanguages, t.validatePackages} {
		if err := check(); err != nil {
			return err
		}
	}
	if t.Pool != nil && (*t.Pool < 0 || *t.Pool > 1000) {
		return fmt.Errorf("pool %d must be from 0 to 1000", *t.Pool)
	}
	for _, line := range t.Start {
		if strings.TrimSpace(line) == "" {
			return errors.New("start must be a command line, or a list of them")
		}
	}
	switch t.Network.Mode {
	case "", "none", "allowlist", "public":
		return nil
	case "open":
		return errors.New("network: the mode open is for all templates: network.mode")
	}
	return fmt.Errorf("network: mode %q must be one of none, allowlist, public", t.Network.Mode)
}

func (t *Template) validateRoot() error {
	switch {
	case t.Image != "" && t.Rootfs != "":
		return errors.New("image and rootfs are both set; a template is made of one of them")
	case t.Image != "":
		_, err := readImage(t.Image)
		return err
	case t.Rootfs != "" && t.Built():
		return errors.New("packages and files need an image; make one of the folder (tar -C FOLDER -c . >root.tar, " +
			"then sandlot image import), and name it as image")
	}
	root, err := filepath.EvalSymlinks(t.Rootfs)
	if err != nil || !filepath.IsAbs(root) {
		return fmt.Errorf("rootfs %q must be an absolute path of an unpacked root file system; or name an image",
			t.Rootfs)
	}
	t.Rootfs = root
	return nil
}

func (t *Template) validateLanguages() error {
	for _, l := range t.Languages {
		if l.Name == "" || len(l.Command) == 0 || !slices.Contains([]string{"", "python", "node", "bash"}, l.Driver) {
			return errors.New("a language needs name, command and, if it keeps state, driver: python, node or bash")
		}
	}
	if len(t.Languages) == 0 && t.Image == "" {
		return errors.New("at least one language is needed; they are found only in an image")
	}
	return nil
}

// packageName matches what pip, npm and apt install. A name never begins with a dash: it would be an option.
var packageName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9@][^\s\x00-\x1f;|&$` + "`" + `]{0,200}$`)
})

func (t *Template) validatePackages() error {
	for what, list := range map[string][]string{"pip": t.Packages.Pip, "npm": t.Packages.Npm, "apt": t.Packages.Apt} {
		for _, name := range list {
			if !packageName().MatchString(name) {
				return fmt.Errorf("packages: %s: %q is not a package, such as numpy or numpy==2.1.0", what, name)
			}
		}
	}
	return nil
}

func checkTemplateKeys(n *yaml.Node) error {
	if err := checkKeys(n, "rootfs", "image", "packages", "files", "start", "env", "warm", "provides", "flavor", "pool",
		"runtime", "languages", "network"); err != nil {
		return err
	}
	for i := 0; i+1 < len(n.Content); i += 2 { // start may be a single command line
		if v := n.Content[i+1]; n.Content[i].Value == "start" && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
			n.Content[i+1] = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{v}}
		}
	}
	var s struct {
		Languages []yaml.Node
		Network   yaml.Node
		Packages  yaml.Node
	}
	if err := n.Decode(&s); err != nil {
		return err
	}
	if err := checkKeys(&s.Network, "mode", "allow"); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if err := checkKeys(&s.Packages, "pip", "npm", "apt"); err != nil {
		return fmt.Errorf("packages: %w", err)
	}
	for i := range s.Languages {
		if err := checkKeys(&s.Languages[i], "name", "driver", "extension", "command", "aliases"); err != nil {
			return err
		}
	}
	return nil
}

// finishTemplates checks the templates against the flavors and runtimes, and adds the one of sandbox_image.
func (c *Config) finishTemplates() error {
	r := &c.Runtime
	r.OwnPoolSize = r.PoolSize
	if sorted := slices.Sorted(slices.Values(r.Names)); len(slices.Compact(sorted)) < len(r.Names) {
		return c.InvalidSetting("runtimes", errors.New("a runtime is named twice"))
	}
	switch {
	case len(r.Names) == 0:
		r.Names = []string{r.Name}
	case slices.Contains(r.Names, r.Name):
	case c.Origin["runtime"] == "default":
		r.Name, c.Origin["runtime"] = r.Names[0], "runtimes"
	default:
		return c.InvalidSetting("runtime", fmt.Errorf("must be one of runtimes: %s", strings.Join(r.Names, ", ")))
	}
	for _, name := range r.Names {
		if c.Network.Mode == "open" && name != "gvisor" {
			return c.InvalidSetting("network.mode", fmt.Errorf("the runtime %s gives no sandbox the machine's own "+
				"network; use public, or only the runtime gvisor%s", name, c.RuntimeHint()))
		}
	}
	if c.sandboxImage != "" {
		if slices.ContainsFunc(c.Templates, func(t Template) bool { return t.Name == ImageTemplate }) {
			return c.InvalidSetting("sandbox_image", fmt.Errorf("there is a template %s already", ImageTemplate))
		}
		c.Templates = append(c.Templates, Template{Name: ImageTemplate, Image: c.sandboxImage})
		if c.Origin["default_template"] == "default" {
			c.Sessions.DefaultTemplate, c.Origin["default_template"] = ImageTemplate, "sandbox_image"
		}
		if c.Sessions.DefaultTemplate == ImageTemplate {
			c.poolOfImage()
		}
	}
	flavors := []string{}
	for _, f := range c.Flavors {
		flavors = append(flavors, f.Name)
	}
	for _, t := range c.Templates {
		if t.Flavor != "" && !slices.Contains(flavors, t.Flavor) {
			return c.invalidTemplate(t, "flavor", t.Flavor, flavors)
		}
		if t.Runtime != "" && !slices.Contains(r.Names, t.Runtime) {
			return c.invalidTemplate(t, "runtime", t.Runtime, r.Names)
		}
		if t.Rootfs != "" && cmp.Or(t.Runtime, r.Name) == "docker" {
			return fault.New(fault.Configuration,
				"%s: templates: %s: the runtime docker makes no sandboxes of a folder "+
					"(rootfs); make an image of it (tar -C FOLDER -c . | docker import - NAME), and name it as image, "+
					"or use the runtime gvisor", c.File, t.Name)
		}
		if cmp.Or(t.Runtime, r.Name) == "microsandbox" && (t.Rootfs != "" || t.Image == "" || t.Built()) {
			return fault.New(fault.Configuration, "%s: templates: %s: the runtime microsandbox makes sandboxes of images as "+
				"they are: name an image, without rootfs, packages and files, or use the runtime gvisor%s", c.File, t.Name,
				c.RuntimeHint())
		}
	}
	return nil
}

// poolOfImage makes pool_size the number of sandboxes of the default template, sandbox_image, and of the other templates
// of the settings. Sandlot's own templates, which nobody asked for then, keep none ready, and so leave their memory to
// these. A bound of memory that the operator did not set leaves room for as many of the image as pool_size says.
func (c *Config) poolOfImage() {
	r := &c.Runtime
	for i := range c.Templates {
		if c.Templates[i].Pool == nil {
			c.Templates[i].Pool = &r.PoolSize
		}
	}
	r.OwnPoolSize = 0
	if c.Origin["pool_memory_mb"] != "default" {
		return
	}
	for _, f := range c.Flavors {
		if needed := f.MemoryMB * r.PoolSize; f.Name == c.Sessions.DefaultFlavor && needed > r.PoolMemoryMB {
			r.PoolMemoryMB, c.Origin["pool_memory_mb"] = needed, "pool_size, sandbox_image"
		}
	}
}

func (c *Config) invalidTemplate(t Template, key, value string, allowed []string) error {
	return fault.New(fault.Configuration, "%s: templates: %s: %s %q must be one of %s%s", c.File, t.Name, key, value,
		strings.Join(allowed, ", "), fault.DidYouMean(value, allowed))
}

func readRuntime(v string) (string, error) {
	if !slices.Contains(runtimeNames, v) {
		return "", fmt.Errorf("%q must be one of %s", v, strings.Join(runtimeNames, ", "))
	}
	return v, nil
}

// readImage checks the reference of an image.
func readImage(v string) (string, error) {
	if v != "" && (len(v) > 500 || strings.ContainsAny(v, " \t\r\n\x00\"'`$") || v[0] == '-') {
		return "", fmt.Errorf("image %q must be a name such as python:3.13-slim or registry.example.com/team/base:2", v)
	}
	return v, nil
}
