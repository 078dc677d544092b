package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/fault"
)

// Source has everything that settings are read from.
type Source struct {
	File  string            // path of sandlot.yaml; empty: see SettingsFile
	Env   map[string]string // variables
	Flags map[string]string // by key; only those that were given
}

// Environ returns the process's variables.
func Environ() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

// InvalidSetting returns a Configuration fault for a setting's current value. It names the setting as the user
// gave it (flag, variable or key of the file), and the value; err says what is allowed.
func (c *Config) InvalidSetting(key string, err error) error {
	i := slices.IndexFunc(c.settings(), func(s setting) bool { return s.key == key })
	return c.invalidValue(key, c.settings()[i].get(), err)
}

// InvalidInFile returns a Configuration fault for the settings file's value of a setting. A variable or
// a flag may override the value.
func (c *Config) InvalidInFile(key string, err error) error {
	return fault.Wrap(fault.Configuration, err, "%s: %s: %v", c.File, key, err)
}

// invalidValue is InvalidSetting for a value that the setting does not have yet.
func (c *Config) invalidValue(key, value string, err error) error {
	origin := c.Origin[key]
	if file, ok := strings.CutPrefix(origin, "file "); ok {
		origin = file + ": " + key
	}
	if origin == "flag" {
		origin = "--" + strings.NewReplacer("_", "-", ".", "-").Replace(key)
	}
	return fault.Wrap(fault.Configuration, err, "%s=%q: %v", strings.TrimPrefix(origin, "variable "),
		shown(key, value), err)
}

// setValue sets a setting to a value, and stores the value's origin.
func (c *Config) setValue(row setting, value, origin string) error {
	c.Origin[row.key] = origin
	if err := row.set(value); err != nil {
		return c.invalidValue(row.key, value, err)
	}
	return nil
}

// Load returns the effective settings, or a Configuration fault that names the
// setting, its value and what is allowed.
func Load(s Source) (*Config, error) {
	c := Default()
	c.Source = s
	if err := checkStateFolder(s.stateDir()); err != nil { // before a command of the settings runs
		return nil, err
	}
	if err := c.readSettingsFile(s); err != nil {
		return nil, err
	}
	c.FileNetwork = c.Network
	for _, row := range c.settings() {
		if err := c.setFromEnv(row, s.Env); err != nil {
			return nil, err
		}
		if v, ok := s.Flags[row.key]; ok {
			if err := c.setValue(row, v, "flag"); err != nil {
				return nil, err
			}
		}
	}
	if err := c.readMicrosandbox(s.Env); err != nil {
		return nil, err
	}
	if err := c.finish(); err != nil {
		return c, err
	}
	if err := checkStateFolder(c.Server.StateDir); err != nil {
		return nil, err
	}
	for _, row := range c.settings() {
		c.changeTexts[row.key] = row.get()
	}
	c.changeTexts[storeKey] = c.Server.Store.Reveal() // another password is a change
	c.changeTexts["secrets.key"] = c.Server.SecretsKey.Reveal()
	return c, nil
}

// setFromEnv sets a setting from its environment variables. Sandlot's own variable overrides the ones of
// the systems that it replaces.
func (c *Config) setFromEnv(row setting, env map[string]string) error {
	used := ""
	for _, name := range append([]string{row.env()}, row.legacyEnv...) {
		v := env[name]
		if v == "" {
			continue
		}
		if used != "" {
			c.Notes = append(c.Notes, fmt.Sprintf("%s and %s both set %s; %s wins", used, name, row.key, used))
			continue
		}
		if err := c.setValue(row, v, "variable "+name); err != nil {
			return err
		}
		used = name
	}
	return nil
}

// SettingsFile returns the path of the settings file. named: the user named the file or its folder;
// required: the user named the file itself, so it has to exist. The working directory is never searched:
// it may be a cloned repository or an unpacked archive, whose author would choose the settings.
func (s Source) SettingsFile() (path string, named, required bool) {
	path = s.File
	if path == "" {
		path = s.Env["SANDLOT_CONFIG"]
	}
	if path != "" {
		if st, err := os.Stat(path); err == nil && st.IsDir() || strings.HasSuffix(path, "/") {
			return filepath.Join(path, "sandlot.yaml"), true, false
		}
		return path, true, true
	}
	return filepath.Join(s.stateDir(), "sandlot.yaml"), false, false
}

// stateDir returns the state folder, unless the settings file names another one.
func (s Source) stateDir() string {
	return cmp.Or(s.Flags["state_dir"], s.Env["SANDLOT_STATE_DIR"], StateDir())
}

// Explicit reports whether the user named the settings file, or its folder. Whoever names the state folder may not know
// that there is such a file in it.
func (s Source) Explicit() bool {
	_, named, _ := s.SettingsFile()
	return named
}

// readSettingsFile reads sandlot.yaml.
func (c *Config) readSettingsFile(s Source) error {
	p, _, required := s.SettingsFile()
	info, _ := os.Stat(p) // before the read: a change in between is noticed by the next comparison
	text, err := os.ReadFile(p)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "the settings file cannot be read: %v", err)
	}
	if c.File, err = filepath.Abs(p); err != nil {
		return err
	}
	if info != nil {
		if !s.Explicit() && !isServersFile(p, info) {
			return fault.New(fault.Configuration,
				"the settings file %s is another user's; take it over (chown), or name it with --config", c.File)
		}
		c.FileVersion = FileVersion{info.ModTime(), info.Size()}
	}
	return c.parse(p, text)
}

func (c *Config) parse(path string, text []byte) error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.Configuration, "%s: %s", path, fmt.Sprintf(format, args...))
	}
	top := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&top); err != nil && len(bytes.TrimSpace(text)) > 0 {
		return invalid("it is not YAML with settings: %v", err)
	}
	flat := map[string]*string{}
	for _, key := range slices.Sorted(maps.Keys(top)) {
		node := top[key]
		var err error
		if key != "mcp" { // where a wrong entry is one server that does not work
			err = repeatedKey(&node)
		}
		if err != nil {
			return invalid("%s: %v", key, err)
		}
		switch key {
		case "flavors":
			err = c.parseFlavors(&node)
		case "templates":
			err = c.parseTemplates(&node)
		case "oidc":
			err = c.parseOIDC(&node)
		case "network":
			err = flattenNetwork(flat, &node)
		case "mcp":
			err = c.parseMCP(&node, path)
		case "quotas":
			err = c.parseQuotas(&node)
		case "tools_for":
			err = c.parseToolModes(&node)
		case "policy":
			err = c.parsePolicy(flat, &node, path)
		default:
			err = flatten(flat, key, &node)
		}
		if err == nil {
			err = c.storeText(key, node)
		}
		if err != nil {
			return invalid("%s: %v", key, err)
		}
	}
	return c.setValues(path, flat)
}

// setValues sets the settings to the values of a file, by their keys. A nil value (a key without a value)
// changes nothing.
func (c *Config) setValues(path string, values map[string]*string) error {
	rows := c.settings()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		i := slices.IndexFunc(rows, func(s setting) bool { return s.key == key })
		value := values[key]
		if i < 0 && (value != nil || !slices.ContainsFunc(rows,
			func(s setting) bool { return strings.HasPrefix(s.key, key+".") })) {
			known := []string{"flavors", "templates", "network", "mcp", "oidc", "policy.rules", "quotas",
				"tools_for"}
			for _, s := range rows {
				known = append(known, s.key)
			}
			return fault.New(fault.Configuration, "%s: unknown setting %q%s", path, key, fault.DidYouMean(key, known))
		}
		if value == nil {
			continue
		}
		if err := c.setValue(rows[i], *value, "file "+path); err != nil {
			return err
		}
	}
	return nil
}

// repeatedKey returns an error if a section has a key twice: one of the two would be without effect.
func repeatedKey(n *yaml.Node) error {
	lines := map[string]int{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if line := lines[c.Value]; line > 0 {
				return fmt.Errorf("line %d: %q stands in line %d already; keep one of the two", c.Line, c.Value, line)
			}
			lines[c.Value] = c.Line
		}
		if err := repeatedKey(c); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys returns an error if a section has a key other than the known ones.
func checkKeys(n *yaml.Node, known ...string) error {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key := n.Content[i].Value; !slices.Contains(known, key) {
			return fmt.Errorf("unknown setting %q%s", key, fault.DidYouMean(key, known))
		}
	}
	return nil
}

// flatten adds the values of a YAML node to values, with dotted keys: a list as text with commas, and
// nil for a key without a value.
func flatten(values map[string]*string, key string, n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		values[key] = nil
		if n.Tag != "!!null" {
			values[key] = &n.Value
		}
	case yaml.SequenceNode:
		var list []string
		if err := n.Decode(&list); err != nil {
			return errors.New("must be a list of texts")
		}
		joined := strings.Join(list, ",")
		values[key] = &joined
	case yaml.MappingNode:
		if len(n.Content) == 0 {
			values[key] = nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := flatten(values, key+"."+n.Content[i].Value, n.Content[i+1]); err != nil {
				return err
			}
		}
	default:
		return errors.New("must be a value, a list or a section")
	}
	return nil
}

func (c *Config) parseFlavors(n *yaml.Node) error {
	var all map[string]Flavor
	if err := n.Decode(&all); err != nil {
		return errors.New("must be names with cpus and memory_mb")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if err := checkKeys(n.Content[i+1], "cpus", "memory_mb"); err != nil {
			return fmt.Errorf("%s: %w", n.Content[i].Value, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		if !(f.CPUs >= 0.1) || f.MemoryMB < 64 {
			return fmt.Errorf("%s: cpus must be at least 0.1 and memory_mb at least 64", name)
		}
		f.Name = name
		c.putFlavor(f)
	}
	return nil
}

// putFlavor adds a flavor, or replaces the flavor of the same name.
func (c *Config) putFlavor(f Flavor) {
	c.Flavors = slices.DeleteFunc(c.Flavors, func(o Flavor) bool { return o.Name == f.Name })
	c.Flavors = append(c.Flavors, f)
	slices.SortStableFunc(c.Flavors, func(a, b Flavor) int { return a.MemoryMB - b.MemoryMB })
}

// keepOrphans is the default of orphan_timeout with on_stop: keep, where sandboxes are to live without a server.
const keepOrphans = 24 * time.Hour

// finish applies and checks what depends on more than one setting.
func (c *Config) finish() error {
	if c.File != "" {
		explicit, hint := c.Source.Explicit(), ""
		if !explicit {
			hint = "; or name it with --config"
		}
		if err := c.CheckTrusted(c.File, explicit); err != nil {
			return fault.Wrap(fault.Configuration, err, "the settings file %s is not used: %v%s", c.File, err, hint)
		}
	}
	if err := c.finishSecrets(); err != nil {
		return err
	}
	if err := c.finishTLS(); err != nil {
		return err
	}
	if err := c.finishOIDC(); err != nil {
		return err
	}
	if c.containerMemory != "" || c.containerCPU != "" {
		f := Flavor{Name: "container", CPUs: 1, MemoryMB: 256}
		if c.containerMemory != "" {
			f.MemoryMB, _ = parseMegabytes(c.containerMemory) // the syntax was checked when it was set
		}
		if c.containerCPU != "" {
			f.CPUs, _ = strconv.ParseFloat(c.containerCPU, 64)
		}
		c.putFlavor(f)
		if c.Origin["default_flavor"] == "default" {
			c.Sessions.DefaultFlavor, c.Origin["default_flavor"] = f.Name, "container_memory_limit, container_cpu_limit"
		}
	}
	names := []string{}
	for _, f := range c.Flavors {
		names = append(names, f.Name)
	}
	for _, name := range names {
		if !slices.Contains(names, c.Sessions.DefaultFlavor) && strings.EqualFold(name, c.Sessions.DefaultFlavor) {
			c.Sessions.DefaultFlavor = name
		}
	}
	if !slices.Contains(names, c.Sessions.DefaultFlavor) {
		return fault.New(fault.Configuration, "default_flavor=%q (%s): must be one of %s", c.Sessions.DefaultFlavor,
			c.Origin["default_flavor"], strings.Join(names, ", "))
	}
	if err := c.finishTemplates(); err != nil {
		return err
	}
	if err := c.checkMemory(); err != nil {
		return err
	}
	if c.Sessions.OnStop == StopKeep && c.Origin["orphan_timeout"] == "default" {
		c.Sessions.OrphanTimeout, c.Origin["orphan_timeout"] = keepOrphans, "on_stop"
	}
	// In mcp-codemode, EXEC_TIMEOUT was not only the default but also the limit of calls.
	if c.Origin["execution_timeout"] == "variable EXEC_TIMEOUT" && c.Origin["max_execution_timeout"] == "default" {
		c.Sessions.MaxCallTimeout, c.Origin["max_execution_timeout"] = c.Sessions.CallTimeout, "variable EXEC_TIMEOUT"
	}
	c.Sessions.MaxCallTimeout = max(c.Sessions.MaxCallTimeout, c.Sessions.CallTimeout)
	return nil
}

// checkMemory returns an error for a budget of memory in which no session fits, and notes budgets in which those of the
// default flavor do not.
func (c *Config) checkMemory() error {
	smallest := slices.MinFunc(c.Flavors, func(a, b Flavor) int { return a.MemoryMB - b.MemoryMB })
	usual := c.Flavors[slices.IndexFunc(c.Flavors, func(f Flavor) bool { return f.Name == c.Sessions.DefaultFlavor })]
	if total := c.Sessions.MaxMemoryMB; total > 0 && total < smallest.MemoryMB {
		return c.InvalidSetting("max_total_memory_mb", fmt.Errorf("no session fits into it: the smallest flavor, %s, has "+
			"%d MB; raise it, leave it out (no limit), or add a smaller flavor (flavors in sandlot.yaml)", smallest.Name,
			smallest.MemoryMB))
	}
	quotas := map[string]*int{"max_total_memory_mb": &c.Sessions.MaxMemoryMB, "quotas: users: memory_mb": c.Quotas.Users.MemoryMB,
		"quotas: services: memory_mb": c.Quotas.Services.MemoryMB}
	for name, q := range c.Quotas.Principals {
		quotas["quotas: principals: "+name+": memory_mb"] = q.MemoryMB
	}
	for _, name := range slices.Sorted(maps.Keys(quotas)) {
		budget := quotas[name]
		if budget == nil || *budget == 0 || *budget >= usual.MemoryMB {
			continue
		}
		fits := fmt.Sprintf("no session of the default flavor, %s, fits into it, which has %d MB: only calls that name a "+
			"smaller flavor get one", usual.Name, usual.MemoryMB)
		if *budget < smallest.MemoryMB {
			fits = fmt.Sprintf("no session fits into it: the smallest flavor, %s, has %d MB", smallest.Name, smallest.MemoryMB)
		}
		c.Notes = append(c.Notes, fmt.Sprintf("%s is %d: %s. Raise it, or add a smaller flavor (flavors in sandlot.yaml)",
			name, *budget, fits))
	}
	if size, budget := c.Runtime.PoolSize, c.Runtime.PoolMemoryMB; size > 0 && budget > 0 && budget < usual.MemoryMB {
		c.Notes = append(c.Notes, fmt.Sprintf("pool_memory_mb is %d: no sandbox of the default flavor, %s, fits into it, "+
			"which has %d MB, so none waits booted for new sessions. Raise it, or set pool_size: 0", budget, usual.Name,
			usual.MemoryMB))
	}
	return nil
}
