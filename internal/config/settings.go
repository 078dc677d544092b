package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/port"
	"sandlot/internal/sandbox"
)

// setting is one row of the table from which the file, the variables, the flags
// and the documentation are read.
type setting struct {
	key, value string
	// older are variables of the succeeded systems, the one that wins first.
	older []string
	help  string
	access
}

// access writes a setting into the settings, and reads it from them.
type access struct {
	set func(*Config, string) error
	get func(*Config) string
}

func (s setting) env() string {
	return "SANDLOT_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

func str(f func(*Config) *string, allowed ...string) access {
	return access{func(c *Config, v string) error {
		if len(allowed) > 0 && !slices.Contains(allowed, v) {
			return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
		}
		*f(c) = v
		return nil
	}, func(c *Config) string { return *f(c) }}
}

func number(f func(*Config) *int, min, max int) access {
	return access{func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < min || n > max {
			return fmt.Errorf("must be a whole number from %d to %d", min, max)
		}
		*f(c) = n
		return nil
	}, func(c *Config) string { return strconv.Itoa(*f(c)) }}
}

// duration is in seconds when it has no unit.
func duration(f func(*Config) *time.Duration, min, max time.Duration) access {
	return access{func(c *Config, v string) error {
		d, err := ParseDuration(v)
		if err != nil || d < min || d > max {
			return fmt.Errorf("must be seconds, or a duration such as 90s, 30m, 7d, from %s to %s", min, max)
		}
		*f(c) = d
		return nil
	}, func(c *Config) string { return f(c).String() }}
}

// ParseDuration reads seconds, or a number with s, m, h or d.
func ParseDuration(v string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(v, 64); err == nil && n >= 0 && n < 1e9 {
		return time.Duration(n * float64(time.Second)), nil
	}
	if days, ok := strings.CutSuffix(v, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || !(n >= 0 && n <= 36500) {
			return 0, fmt.Errorf("%q is not a number of days", v)
		}
		return time.Duration(n * 24 * float64(time.Hour)), nil
	}
	return time.ParseDuration(v)
}

func boolean(f func(*Config) *bool) access {
	return access{func(c *Config, v string) error {
		switch strings.ToLower(v) {
		case "true", "1", "yes", "on":
			*f(c) = true
		case "false", "0", "no", "off":
			*f(c) = false
		default:
			return fmt.Errorf("must be true or false")
		}
		return nil
	}, func(c *Config) string { return strconv.FormatBool(*f(c)) }}
}

const day = 24 * time.Hour

var settings = slices.Concat(serverRows, runtimeRows, sessionRows, networkRows, mcpRows, outputRows)

// serverRows are the settings of the server.
var serverRows = []setting{
	{"host", "localhost", []string{"MCP_SERVER_HOST", "MCP_HOST"},
		"the address to listen on; anything but loopback needs a token",
		access{setHost, func(c *Config) string { return c.Server.Host }}},
	{"port", "8000", []string{"MCP_SERVER_PORT", "MCP_PORT"},
		"the port to listen on",
		number(func(c *Config) *int { return &c.Server.Port }, 1, 65535)},
	{"cors.enabled", "false", []string{"MCP_ENABLE_CORS"},
		"send CORS headers",
		boolean(func(c *Config) *bool { return &c.Server.CORS })},
	{"cors.origins", "", nil,
		"allowed origins, separated by commas; empty with cors: any, without credentials, where a token is required",
		access{setOrigins, func(c *Config) string { return strings.Join(c.Server.CORSOrigins, ",") }}},
	{"auth", "auto", nil,
		"auto: a token is needed as soon as one exists; required; off (loopback only)",
		access{setAuth, func(c *Config) string { return string(c.Server.Auth) }}},
	{"log_level", "INFO", nil,
		"DEBUG, INFO, WARNING or ERROR",
		access{setLevel, func(c *Config) string { return c.Server.LogLevel }}},
	{"state_dir", StateDir(), nil,
		"where the server keeps its state",
		access{setStateDir, func(c *Config) string { return c.Server.StateDir }}},
	{"max_body_mb", "16", nil,
		"the largest MCP request, in MiB; files have no such limit",
		number(func(c *Config) *int { return &c.Server.MaxBodyMB }, 1, 1024)},
	{"public_url", "", nil,
		"the address under which clients and browsers reach this server, such as https://sandlot.example.com: the " +
			"start and GET /install name it, and log-ins at third-party MCP servers come back there; empty: " +
			"http://HOST:PORT",
		access{setPublicURL, func(c *Config) string { return c.Server.PublicURL }}},
	{"secrets.key_file", "", nil,
		"a file of 32 random bytes, with which users' secrets and log-ins are stored; empty: secrets.key in the " +
			"state folder, which is made",
		access{setSecretsKey, func(c *Config) string { return c.Server.SecretsKey }}},
	{"ports_domain", "", nil,
		"the domain of exposed ports: its names {port}-{session}.DOMAIN all lead to this server; empty: localhost",
		access{setPortsDomain, func(c *Config) string { return c.Server.PortsDomain }}},
}

// runtimeRows are the settings of what makes sandboxes.
var runtimeRows = []setting{
	{"runtime", "gvisor", nil,
		"what makes sandboxes",
		str(func(c *Config) *string { return &c.Runtime.Name }, "gvisor")},
	{"runsc", "", nil,
		"path of sandlot-runsc; empty: beside the server's program",
		str(func(c *Config) *string { return &c.Runtime.Runsc })},
	{"agent", "", nil,
		"path of sandlot-agent; empty: beside the server's program",
		str(func(c *Config) *string { return &c.Runtime.Agent })},
	{"sandbox_start_timeout", "180", []string{"MSB_SANDBOX_START_TIMEOUT"},
		"seconds that a sandbox may take to start",
		duration(func(c *Config) *time.Duration { return &c.Runtime.Start }, time.Second, time.Hour)},
	{"pool_size", "2", []string{"POOL_SIZE"},
		"booted sandboxes that wait for new sessions, for each template",
		number(func(c *Config) *int { return &c.Runtime.Pool }, 0, 1000)},
	{"snapshots", "true", nil,
		"start new sandboxes from a snapshot of one that has booted; false: boot each",
		boolean(func(c *Config) *bool { return &c.Runtime.Snapshots })},
	{"max_processes", "512", nil,
		"processes and threads in a sandbox",
		number(func(c *Config) *int { return &c.Runtime.Processes }, 16, 1<<20)},
	{"disk_mb", "10240", nil,
		"what a sandbox may write outside /workspace, and in it, in MB each",
		number(func(c *Config) *int { return &c.Runtime.DiskMB }, 16, 1<<30)},
}

// sessionRows are the settings of sessions.
var sessionRows = []setting{
	{"default_template", "host", nil,
		"what a new session is made of",
		str(func(c *Config) *string { return &c.Sessions.DefaultTemplate })},
	{"default_flavor", "small", []string{"MSB_DEFAULT_FLAVOR"},
		"how large a new session is",
		str(func(c *Config) *string { return &c.Sessions.DefaultFlavor })},
	{"max_sessions", "10", []string{"MSB_MAX_SESSIONS"},
		"live sessions of one principal, beside their home",
		number(func(c *Config) *int { return &c.Sessions.Max }, 1, 100000)},
	{"max_total_memory_mb", "0", []string{"MSB_MAX_TOTAL_MEMORY_MB"},
		"memory of all live sessions' flavors together; 0: no limit",
		number(func(c *Config) *int { return &c.Sessions.MaxMemoryMB }, 0, 1<<40)},
	{"session_timeout", "1800", []string{"MSB_SESSION_TIMEOUT"},
		"seconds without use after which a session stops",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Timeout }, time.Second, 3650*day)},
	{"cleanup_interval", "60", []string{"MSB_CLEANUP_INTERVAL"},
		"seconds between two looks for idle sessions",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Sweep }, time.Second, day)},
	{"orphan_timeout", "3600", nil,
		"seconds without a server after which a sandbox ends itself; 0: never",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Orphan }, 0, 3650*day)},
	{"orphan_cleanup_interval", "600", []string{"MSB_ORPHAN_CLEANUP_INTERVAL"},
		"seconds between two looks for sandboxes that belong to nobody",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Orphans }, time.Second, day)},
	{"enable_lru_eviction", "true", []string{"MSB_ENABLE_LRU_EVICTION"},
		"at the limit, stop the caller's session that was idle for longest",
		boolean(func(c *Config) *bool { return &c.Sessions.Evict })},
	{"workspace_retention", "7d", nil,
		"how long the files of a stopped session are kept; a home's are kept for ever",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Retention }, 0, 36500*day)},
	{"execution_timeout", "300", []string{"MSB_EXECUTION_TIMEOUT", "EXEC_TIMEOUT"},
		"seconds that a call may take when it names no timeout",
		duration(func(c *Config) *time.Duration { return &c.Sessions.Execution }, time.Second, day)},
	{"max_execution_timeout", "300", nil,
		"the largest timeout that a call may name",
		duration(func(c *Config) *time.Duration { return &c.Sessions.MaxExecution }, time.Second, day)},
}

// outputRows are the settings of results, shared folders, and the default flavor.
var outputRows = []setting{
	{"output_style", "plain", nil,
		"the text of execute_code: plain or labeled",
		str(func(c *Config) *string { return &c.Output.Style }, "plain", "labeled")},
	{"max_output_size", "50000", []string{"MAX_OUTPUT_SIZE"},
		"characters of each output stream in a result",
		number(func(c *Config) *int { return &c.Output.Max }, 256, 1<<20)},
	{"volumes", "", []string{"MSB_SHARED_VOLUME_PATH"},
		"shared folders: host:sandbox, optionally :ro; separated by commas, or a JSON array",
		access{setVolumes, volumesText}},
	{"volume_limit_mb", "10240", nil,
		"what each shared folder may hold before sandboxes can only read it, in MB; 0: no limit",
		number(func(c *Config) *int { return &c.VolumeMB }, 0, 1<<30)},
	{"container_memory_limit", "", []string{"CONTAINER_MEMORY_LIMIT"},
		"memory of the default flavor, such as 256m",
		access{setMemory, func(c *Config) string { return c.limitedMemory }}},
	{"container_cpu_limit", "", []string{"CONTAINER_CPU_LIMIT"},
		"CPUs of the default flavor",
		access{setCPU, func(c *Config) string { return c.limitedCPU }}},
}

func setHost(c *Config, v string) error {
	if v == "" || strings.ContainsAny(v, "/ \t\n") || strings.Count(v, ":") == 1 {
		return fmt.Errorf("must be a host name or an address, without port")
	}
	if ip := strings.Trim(v, "[]"); net.ParseIP(ip) != nil {
		v = ip
	}
	c.Server.Host = v
	return nil
}

func setOrigins(c *Config, v string) error {
	c.Server.CORSOrigins = nil
	for _, o := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		if o != "*" && !strings.HasPrefix(o, "http://") && !strings.HasPrefix(o, "https://") {
			return fmt.Errorf("%q must begin with http:// or https://", o)
		}
		if o != "*" {
			c.Server.CORSOrigins = append(c.Server.CORSOrigins, strings.TrimSuffix(o, "/"))
		}
	}
	return nil
}

func setAuth(c *Config, v string) error {
	switch m := auth.Mode(v); m {
	case auth.Auto, auth.Required, auth.Off:
		c.Server.Auth = m
		return nil
	}
	return fmt.Errorf("must be one of auto, required, off")
}

func setPublicURL(c *Config, v string) error {
	u, err := url.Parse(v)
	if v != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "") {
		return errors.New("must be an address such as https://sandlot.example.com")
	}
	c.Server.PublicURL = strings.TrimSuffix(v, "/")
	return nil
}

func setPortsDomain(c *Config, v string) error {
	if v != "" {
		if _, _, err := port.ParseDomain(v); err != nil {
			return err
		}
	}
	c.Server.PortsDomain = v
	return nil
}

func setLevel(c *Config, v string) error {
	v = strings.ToUpper(v)
	if !slices.Contains([]string{"DEBUG", "INFO", "WARNING", "ERROR"}, v) {
		return fmt.Errorf("must be one of DEBUG, INFO, WARNING, ERROR")
	}
	c.Server.LogLevel = v
	return nil
}

func setStateDir(c *Config, v string) error {
	if v == "" {
		return fmt.Errorf("must be a folder")
	}
	abs, err := filepath.Abs(v)
	c.Server.StateDir = abs
	return err
}

func setSecretsKey(c *Config, v string) (err error) {
	if v != "" {
		v, err = filepath.Abs(v)
	}
	c.Server.SecretsKey = v
	return err
}

// setVolumes reads one host:sandbox[:ro], several with commas, or a JSON array.
func setVolumes(c *Config, v string) error {
	c.Volumes = nil
	list := strings.Split(v, ",")
	if strings.HasPrefix(strings.TrimSpace(v), "[") {
		list = nil
		if err := json.Unmarshal([]byte(v), &list); err != nil {
			return fmt.Errorf("looks like a JSON array, but is not one of strings")
		}
	}
	for _, e := range list {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		m, err := volume(e)
		if err != nil {
			return err
		}
		for _, o := range c.Volumes {
			if o.Target == m.Target {
				return fmt.Errorf("%s is the target of two volumes", m.Target)
			}
		}
		c.Volumes = append(c.Volumes, m)
	}
	return nil
}

// reserved are places of the sandbox that a volume must not cover.
var reserved = []string{"/", "/workspace", "/proc", "/sys", "/dev", "/run/sandlot", "/var/lib/sandlot", "/usr", "/bin",
	"/lib", "/lib64", "/etc", "/tmp", "/.sandlot"}

func volume(e string) (sandbox.Mount, error) {
	rest, ro := strings.CutSuffix(e, ":ro")
	if !ro {
		rest = strings.TrimSuffix(rest, ":rw")
	}
	i := strings.LastIndexByte(rest, ':')
	if i <= 0 {
		return sandbox.Mount{}, fmt.Errorf("%q must be host:sandbox or host:sandbox:ro", e)
	}
	host, target := rest[:i], path.Clean(rest[i+1:])
	if !path.IsAbs(target) || slices.Contains(reserved, target) {
		return sandbox.Mount{}, fmt.Errorf("%q: the place in the sandbox must be an absolute path of its own, such "+
			"as /data", e)
	}
	real, err := filepath.EvalSymlinks(host)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return sandbox.Mount{}, fmt.Errorf("%q: the host's folder cannot be used: %v", e, err)
	}
	if st, err := os.Stat(real); err != nil || !st.IsDir() {
		return sandbox.Mount{}, fmt.Errorf("%q: %s is not a folder", e, real)
	}
	return sandbox.Mount{Source: real, Target: target, ReadOnly: ro}, nil
}

func volumesText(c *Config) string {
	var all []string
	for _, v := range c.Volumes {
		s := v.Source + ":" + v.Target
		if v.ReadOnly {
			s += ":ro"
		}
		all = append(all, s)
	}
	return strings.Join(all, ",")
}

func setMemory(c *Config, v string) error {
	if v == "" {
		c.limitedMemory = ""
		return nil
	}
	if _, err := megabytes(v); err != nil {
		return err
	}
	c.limitedMemory = v
	return nil
}

// megabytes reads Docker's form of a size: bytes, or a number with k, m or g.
func megabytes(v string) (int, error) {
	unit := map[byte]float64{'b': 1, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30}
	n, f := strings.ToLower(v), 1.0
	if u, ok := unit[n[len(n)-1]]; ok {
		n, f = n[:len(n)-1], u
	}
	x, err := strconv.ParseFloat(n, 64)
	mb := int(x * f / (1 << 20))
	if err != nil || mb < 64 || mb > 1<<24 {
		return 0, fmt.Errorf("must be a size of at least 64 MB, such as 256m or 2g")
	}
	return mb, nil
}

func setCPU(c *Config, v string) error {
	if v != "" {
		if x, err := strconv.ParseFloat(v, 64); err != nil || !(x >= 0.1 && x <= 1024) {
			return fmt.Errorf("must be a number of CPUs from 0.1 to 1024")
		}
	}
	c.limitedCPU = v
	return nil
}
