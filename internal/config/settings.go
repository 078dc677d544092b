package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// setting is one row of the table of settings. The parsers of the file, variables and flags use it,
// and so does the documentation.
type setting struct {
	key, value string
	// legacyEnv are the variables of the systems that Sandlot replaces, in order of precedence.
	legacyEnv []string
	help      string
	accessor
}

// accessor sets and gets the text form of a setting's value in a Config.
type accessor struct {
	set func(string) error
	get func() string
}

func (s setting) env() string {
	return "SANDLOT_" + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

// text is a setting with a text. read checks the text and returns the form to store; nil: any text is
// allowed.
func text(target *string, normalize func(string) (string, error)) accessor {
	return accessor{func(v string) (err error) {
		if normalize != nil {
			v, err = normalize(v)
		}
		if err == nil {
			*target = v
		}
		return err
	}, func() string { return *target }}
}

func oneOf(target *string, allowed ...string) accessor {
	return text(target, func(v string) (string, error) {
		if !slices.Contains(allowed, v) {
			return "", fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
		}
		return v, nil
	})
}

// list is a setting with a list of words, separated by commas. normalize is called for each word, as in text;
// words for which it returns "" are left out.
func list(target *[]string, normalize func(string) (string, error)) accessor {
	return accessor{func(v string) error {
		*target = nil
		for _, w := range splitWords(v) {
			w, err := normalize(w)
			if err != nil {
				return err
			}
			if w != "" {
				*target = append(*target, w)
			}
		}
		return nil
	}, func() string { return strings.Join(*target, ",") }}
}

func splitWords(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
}

func number(target *int, min, max int) accessor {
	return accessor{func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < min || n > max {
			return fmt.Errorf("must be a whole number from %d to %d", min, max)
		}
		*target = n
		return nil
	}, func() string { return strconv.Itoa(*target) }}
}

// duration is a setting with a duration; a number without a unit is seconds.
func duration(target *time.Duration, min, max time.Duration) accessor {
	return accessor{func(v string) error {
		d, err := ParseDuration(v)
		if err != nil || d < min || d > max {
			return fmt.Errorf("must be seconds, or a duration such as 90s, 30m, 7d, from %s to %s", min, max)
		}
		*target = d
		return nil
	}, func() string { return target.String() }}
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

func boolean(target *bool) accessor {
	return accessor{func(v string) error {
		switch strings.ToLower(v) {
		case "true", "1", "yes", "on":
			*target = true
		case "false", "0", "no", "off":
			*target = false
		default:
			return fmt.Errorf("must be true or false")
		}
		return nil
	}, func() string { return strconv.FormatBool(*target) }}
}

const day = 24 * time.Hour

// settings returns the table of settings, whose rows set and get the values of c.
func (c *Config) settings() []setting {
	return slices.Concat(c.serverRows(), c.runtimeRows(), c.dockerRows(), c.sessionRows(), c.networkRows(),
		c.mcpRows(), c.toolRows(), c.policyRows(), c.outputRows(), c.eventRows())
}

// serverRows returns the settings of the server.
func (c *Config) serverRows() []setting {
	s := &c.Server
	return []setting{
		{"host", "localhost", []string{"MCP_SERVER_HOST", "MCP_HOST"},
			"the address to listen on; anything but loopback needs a token", text(&s.Host, readHost)},
		{"port", "8000", []string{"MCP_SERVER_PORT", "MCP_PORT"},
			"the port to listen on", number(&s.Port, 1, 65535)},
		{"cors.enabled", "false", []string{"MCP_ENABLE_CORS"}, "send CORS headers", boolean(&s.CORS)},
		{"cors.origins", "", nil,
			"allowed origins, separated by commas; empty with cors: any, without credentials, where a token " +
				"is required, and else the pages of this machine (http://localhost:*, http://127.0.0.1:*)",
			list(&s.CORSOrigins, readOrigin)},
		{"auth", "auto", nil,
			"auto: a token is needed as soon as one exists; required; off (loopback only)",
			oneOf(&s.Auth, "auto", "required", "off")},
		{"log_level", "INFO", nil, "DEBUG, INFO, WARNING or ERROR", text(&s.LogLevel, readLevel)},
		{"state_dir", StateDir(), nil,
			"where the server keeps its state", text(&s.StateDir, absoluteFolder)},
		{"store", "", nil,
			"the URL of a PostgreSQL database, such as postgres://USER:PASSWORD@HOST/DATABASE, for tokens, sessions, " +
				"connections, secrets; empty: an SQLite file in the state folder",
			database(&s.Store)},
		{"replicas.address", "", nil,
			"the address, such as 10.0.0.5:7443, at which this server listens for the other servers of its PostgreSQL " +
				"database; empty: it is the only one",
			text(&s.ReplicaAddress, readHostPort)},
		{"max_body_mb", "16", nil,
			"the largest MCP request, in MiB; files have no such limit", number(&s.MaxBodyMB, 1, 1024)},
		{"public_url", "", nil,
			"the address under which clients and browsers reach this server, such as https://sandlot.example.com: " +
				"the start and GET /install name it, and log-ins at third-party MCP servers come back there; empty: " +
				"http://HOST:PORT",
			text(&s.PublicURL, readURL)},
		{"tls.cert_file", "", nil,
			"a PEM file with the certificate of the server, and those up to its authority; read again when it changes",
			text(&s.TLS.CertFile, absoluteFile)},
		{"tls.key_file", "", nil, "a PEM file with the certificate's key", text(&s.TLS.KeyFile, absoluteFile)},
		{"tls.domains", "", nil,
			"domains of this server, separated by commas: it gets certificates for them by ACME, and clients must " +
				"reach it at port 443",
			list(&s.TLS.Domains, readDomain)},
		{"tls.email", "", nil, "the address that the ACME server gets, for warnings", text(&s.TLS.Email, nil)},
		{"tls.acme_directory", "https://acme-v02.api.letsencrypt.org/directory", nil,
			"the directory of the ACME server", text(&s.TLS.Directory, readURL)},
		{"console.enabled", "true", nil, "serve the web console at /console/", boolean(&s.Console)},
		{"trusted_proxies", "", nil,
			"addresses and networks, such as 127.0.0.1 or 10.0.0.0/8, of the proxies whose X-Forwarded-For, -Proto " +
				"and -Host count; separated by commas",
			networks(&s.TrustedProxies)},
		{"secrets.key_file", "", nil,
			"a file of 32 random bytes, the key that encrypts users' secrets and log-ins; empty: secrets.key in " +
				"the state folder, which is made",
			text(&s.SecretsKeyFile, absoluteFile)},
		{"secrets.key", "", nil,
			"the key itself, 32 random bytes in hexadecimal or base64, in place of a file; it is not shown",
			keyText(&s.SecretsKey)},
		{"secrets.keyring", "", nil,
			"the name of the key in the keyring of the server's user, in place of a file; it is made there",
			text(&s.SecretsKeyring, readKeyName)},
		{"secrets.new_key", "", nil,
			"the key to which `sandlot secret rekey` changes, with secrets.key; it is not shown",
			keyText(&s.SecretsNewKey)},
		{"ports_domain", "", nil,
			"the domain of exposed ports: its names {port}-{session}.DOMAIN all lead to this server; empty: localhost",
			text(&s.PortsDomain, nil)},
	}
}

// runtimeRows returns the settings of the runtime.
func (c *Config) runtimeRows() []setting {
	r := &c.Runtime
	return []setting{
		{"runtime", defaultRuntime(), nil,
			"what makes sandboxes", oneOf(&r.Name, runtimeNames...)},
		{"runtimes", "", nil,
			"all runtimes of this server, separated by commas; a template names its own; empty: the one of runtime",
			list(&r.Names, readRuntime)},
		{"runsc", "", nil, "path of sandlot-runsc; empty: beside the server's program", text(&r.RunscPath, nil)},
		{"agent", "", nil,
			"path of sandlot-agent; empty: beside the server's program", text(&r.AgentPath, nil)},
		{"platform", "systrap", nil,
			"how gVisor gets the system calls of programs: systrap, kvm, or auto: kvm where a trial finds it faster",
			oneOf(&r.Platform, "auto", "systrap", "kvm")},
		{"capabilities", "root", nil,
			"what root may do in a sandbox of gVisor: root: give files to other users and become them, as package " +
				"managers and servers do; none: nothing of that",
			oneOf(&r.Capabilities, "root", "none")},
		{"packages.python", readyPython, nil,
			"packages of Python that all sandboxes of the template host have, separated by commas; none: there are none",
			list(&r.Python, readPackage)},
		{"packages.node", readyNode, nil,
			"packages of Node that all sandboxes of the template host have, separated by commas; none: there are none",
			list(&r.Node, readPackage)},
		{"packages.go", "std", nil,
			"packages of Go's standard library that its build cache has in all sandboxes of the template host, separated by " +
				"commas; none: there is no such cache",
			list(&r.Go, readPackage)},
		{"packages.apt", "true", nil,
			"whether the server fetches the lists of Debian's or Ubuntu's archive once a day, for apt-get in the template host",
			boolean(&r.Apt)},
		{"sandbox_start_timeout", "180", []string{"MSB_SANDBOX_START_TIMEOUT"},
			"seconds that a sandbox may take to start", duration(&r.StartTimeout, time.Second, time.Hour)},
		{"pool_size", "2", []string{"POOL_SIZE"},
			"booted sandboxes that wait for new sessions, for each template", number(&r.PoolSize, 0, 1000)},
		{"pool_memory_mb", "8192", nil,
			"memory of the flavors of all sandboxes that wait for new sessions, together; 0: no limit",
			number(&r.PoolMemoryMB, 0, 1<<40)},
		{"snapshots", "true", nil,
			"start new sandboxes from a snapshot of one that has booted; false: boot each", boolean(&r.Snapshots)},
		{"max_processes", "512", nil,
			"processes and threads in a sandbox", number(&r.MaxProcesses, 16, 1<<20)},
		{"disk_mb", "10240", nil,
			"what a sandbox may write outside /workspace, and in it, in MB each", number(&r.DiskMB, 16, 1<<30)},
	}
}

// dockerRows returns the settings of the runtimes docker and microsandbox.
func (c *Config) dockerRows() []setting {
	d := &c.Docker
	return []setting{
		{"docker.host", "", nil,
			"the Docker daemon's or Podman's socket, such as unix:///run/docker.sock; empty: as for the docker command",
			text(&d.Host, nil)},
		{"docker.context", "", nil,
			"the context of the docker command that has the daemon's address; empty: the current one",
			text(&d.Context, nil)},
		{"docker.files", "auto", nil,
			"whether the daemon sees the server's files: shared, separate, or auto, which finds out",
			oneOf(&d.Files, "auto", "shared", "separate")},
		{"docker.runtime", "", nil,
			"the daemon's runtime for sandboxes, such as runsc; empty: the daemon's default", text(&d.Runtime, nil)},
		{"docker.writable_root", "false", nil,
			"sandboxes may write everywhere in their root file system, without a limit of the disk",
			boolean(&d.WritableRoot)},
		{"microsandbox.msb", "", nil,
			"path of microsandbox's program msb, for the runtime microsandbox; empty: in PATH, or ~/.microsandbox/bin/msb",
			text(&c.Microsandbox.Program, nil)},
	}
}

// sessionRows returns the settings of sessions.
func (c *Config) sessionRows() []setting {
	s := &c.Sessions
	return []setting{
		{"default_template", "host", nil,
			"what a new session is made of", text(&s.DefaultTemplate, nil)},
		{"default_flavor", "small", []string{"MSB_DEFAULT_FLAVOR"},
			"how large a new session is", text(&s.DefaultFlavor, nil)},
		{"max_sessions", "10", []string{"MSB_MAX_SESSIONS"},
			"live sessions of one principal, beside their home", number(&s.MaxSessions, 1, 100000)},
		{"max_total_memory_mb", "0", []string{"MSB_MAX_TOTAL_MEMORY_MB"},
			"memory of all live sessions' flavors together; 0: no limit", number(&s.MaxMemoryMB, 0, 1<<40)},
		{"session_timeout", "1800", []string{"MSB_SESSION_TIMEOUT"},
			"seconds without use after which a session sleeps or stops",
			duration(&s.IdleTimeout, time.Second, 3650*day)},
		{"cleanup_interval", "60", []string{"MSB_CLEANUP_INTERVAL"},
			"seconds between two searches for idle sessions", duration(&s.SweepInterval, time.Second, day)},
		{"orphan_timeout", "3600", nil,
			"seconds without a server after which a sandbox ends itself; 0: never; 24 h by default with on_stop: keep",
			duration(&s.OrphanTimeout, 0, 3650*day)},
		{"orphan_cleanup_interval", "600", []string{"MSB_ORPHAN_CLEANUP_INTERVAL"},
			"seconds between two searches for sandboxes without an owner",
			duration(&s.OrphanSweepInterval, time.Second, day)},
		{"enable_lru_eviction", "true", []string{"MSB_ENABLE_LRU_EVICTION"},
			"at the limit, stop the caller's session that was idle for longest", boolean(&s.EvictIdle)},
		{"workspace_retention", "7d", nil,
			"how long the files of a stopped session are kept; a home's are kept for ever",
			duration(&s.Retention, 0, 36500*day)},
		{"execution_timeout", "300", []string{"MSB_EXECUTION_TIMEOUT", "EXEC_TIMEOUT"},
			"seconds that a call may take when it names no timeout", duration(&s.CallTimeout, time.Second, day)},
		{"max_execution_timeout", "300", nil,
			"the largest timeout that a call may name", duration(&s.MaxCallTimeout, time.Second, day)},
		{"on_stop", StopHibernate, nil,
			"what becomes of sessions when the server is stopped: hibernate, end, or keep, which leaves them running",
			oneOf(&s.OnStop, StopKeep, StopHibernate, StopEnd)},
		{"hibernate.enabled", "true", nil,
			"put an idle session to sleep, with its variables and processes, where its runtime can; else it is stopped",
			boolean(&s.Hibernate.Enabled)},
		{"hibernate.background", "active", nil,
			"which background processes keep a session awake: active (they listen, or use the processor), all, none",
			oneOf(&s.Hibernate.Background, "active", "all", "none")},
		{"hibernate.jobs", "4h", nil,
			"for how long a background process that only waits keeps its session awake, if it has no time limit",
			duration(&s.Hibernate.Jobs, 0, 36500*day)},
		{"hibernate.max_image_mb", "2048", nil,
			"how large a sleeping session may be on the disk, in MB; a larger one is stopped",
			number(&s.Hibernate.MaxImageMB, 1, 1<<30)},
		{"hibernate.disk_mb", "20480", nil,
			"how large all sleeping sessions may be together, in MB; who has most loses the images of the oldest",
			number(&s.Hibernate.DiskMB, 1, 1<<40)},
		{"hibernate.compress_after", "1h", nil,
			"after so long asleep, sessions are compressed on the disk",
			duration(&s.Hibernate.CompressAfter, 0, 36500*day)},
		{"hibernate.seal", "false", nil,
			"encrypt on the disk what sleeping sessions and snapshots have in memory, with the key of secrets",
			boolean(&s.Hibernate.Seal)},
		{"hibernate.keep", "7d", nil,
			"how long a session may sleep; then it keeps only its files", duration(&s.Hibernate.Keep, 0, 36500*day)},
	}
}

// outputRows returns the settings of results, shared folders, and the default flavor.
func (c *Config) outputRows() []setting {
	return []setting{
		{"output_style", "plain", nil,
			"the text of execute_code: plain or labeled", oneOf(&c.Output.Style, "plain", "labeled")},
		{"max_output_size", "16000", []string{"MAX_OUTPUT_SIZE"},
			"characters of each output stream in a result", number(&c.Output.MaxCharacters, 256, 1<<20)},
		{"volumes", "", []string{"MSB_SHARED_VOLUME_PATH"},
			"shared folders: host:sandbox, optionally :ro; separated by commas, or a JSON array",
			accessor{c.setVolumes, c.volumesText}},
		{"volume_limit_mb", "10240", nil,
			"what each shared folder may hold before sandboxes can only read it, in MB; 0: no limit",
			number(&c.VolumeLimitMB, 0, 1<<30)},
		{"container_memory_limit", "", []string{"CONTAINER_MEMORY_LIMIT"},
			"memory of the default flavor, such as 256m", text(&c.containerMemory, readMemory)},
		{"sandbox_image", "", []string{"SANDBOX_IMAGE"},
			"the image of the template " + ImageTemplate + ", which is the default template unless " +
				"default_template is set",
			text(&c.sandboxImage, readImage)},
		{"container_cpu_limit", "", []string{"CONTAINER_CPU_LIMIT"},
			"CPUs of the default flavor", text(&c.containerCPU, readCPU)},
	}
}

// eventRows returns the settings of stored events.
func (c *Config) eventRows() []setting {
	e := &c.Events
	return []setting{
		{"events.keep_max", "100000", nil,
			"events that stay stored, and as many of the network and of exposed ports; 0: events are only in memory",
			number(&e.KeepMax, 0, 100_000_000)},
		{"events.keep_days", "30", nil,
			"days after which a stored event is removed; 0: never", number(&e.KeepDays, 0, 36500)},
		{"events.file", "", nil,
			"a file that gets all stored events as lines of JSON; empty: none", text(&e.File, absoluteFile)},
		{"telemetry.otlp_endpoint", "", nil,
			"the URL of an OpenTelemetry collector that gets traces, metrics and logs over OTLP/HTTP, such as " +
				"http://localhost:4318; empty: none",
			text(&c.Telemetry.Endpoint, readURL)},
		{"telemetry.otlp_headers", "", nil,
			"headers of the requests to the collector, NAME=VALUE, separated by commas; they are not shown",
			accessor{c.setTelemetryHeaders, c.telemetryHeadersText}},
	}
}

// telemetryHeadersKey is a setting whose value may have secrets.
const telemetryHeadersKey = "telemetry.otlp_headers"

// setTelemetryHeaders sets the headers by a text NAME=VALUE,NAME=VALUE. Errors have no values.
func (c *Config) setTelemetryHeaders(v string) error {
	c.Telemetry.Headers = map[string]string{}
	for part := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("must be NAME=VALUE, separated by commas")
		}
		c.Telemetry.Headers[name] = value
	}
	return nil
}

// telemetryHeadersText returns the headers without their values, which may be secrets.
func (c *Config) telemetryHeadersText() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Telemetry.Headers)) {
		all = append(all, name+"=…")
	}
	return strings.Join(all, ",")
}

func readHost(v string) (string, error) {
	if v == "" || strings.ContainsAny(v, "/ \t\n") || strings.Count(v, ":") == 1 {
		return "", fmt.Errorf("must be a host name or an address, without port")
	}
	if ip := strings.Trim(v, "[]"); net.ParseIP(ip) != nil {
		v = ip
	}
	return v, nil
}

func readOrigin(v string) (string, error) {
	if v == AnyOrigin {
		return v, nil
	}
	if !strings.HasPrefix(v, "http://") && !strings.HasPrefix(v, "https://") {
		return "", fmt.Errorf("%q must begin with http:// or https://", v)
	}
	return strings.TrimSuffix(v, "/"), nil
}

func readHostPort(v string) (string, error) {
	host, port, err := net.SplitHostPort(v)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if v != "" && (err != nil || portErr != nil || n == 0 || host == "") {
		return "", errors.New("must be the host, or the IP address, at which the others reach this server, and a port, " +
			"such as 10.0.0.5:7443")
	}
	return v, nil
}

func readURL(v string) (string, error) {
	u, err := url.Parse(v)
	if v != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "") {
		return "", errors.New("must be an address such as https://sandlot.example.com")
	}
	return strings.TrimSuffix(v, "/"), nil
}

func readLevel(v string) (string, error) {
	v = strings.ToUpper(v)
	if !slices.Contains([]string{"DEBUG", "INFO", "WARNING", "ERROR"}, v) {
		return "", fmt.Errorf("must be one of DEBUG, INFO, WARNING, ERROR")
	}
	return v, nil
}

func absoluteFolder(v string) (string, error) {
	if v == "" {
		return "", fmt.Errorf("must be a folder")
	}
	return filepath.Abs(v)
}

// absoluteFile returns the absolute path of a file, or empty if v is.
func absoluteFile(v string) (string, error) {
	if v == "" {
		return "", nil
	}
	return filepath.Abs(v)
}

// setVolumes sets the volumes by one or more texts host:sandbox[:ro], separated by commas or in a JSON
// array.
func (c *Config) setVolumes(v string) error {
	c.Volumes = nil
	list := strings.Split(v, ",")
	if text := strings.TrimSpace(v); strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		var err error
		if list, err = volumeList(text); err != nil {
			return err
		}
	}
	for _, e := range list {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		m, err := parseVolume(e)
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

// volumeForm is the form of the setting volumes in JSON.
const volumeForm = `a JSON list of texts HOST:SANDBOX, such as ["/srv/data:/data", "/srv/docs:/docs:ro"]`

// volumeList returns the texts of a JSON list. The error says what is there in place of one.
func volumeList(text string) (list []string, err error) {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return nil, fmt.Errorf("is not valid JSON (%v): write %s", err, volumeForm)
	}
	items, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("is a JSON object, and not a list: write %s", volumeForm)
	}
	for i, item := range items {
		what := "null"
		switch item := item.(type) {
		case string:
			list = append(list, item)
			continue
		case map[string]any:
			what = "an object"
		case []any:
			what = "a list"
		case float64:
			what = "a number"
		case bool:
			what = "true or false"
		}
		return nil, fmt.Errorf("is a list whose entry %d is %s, and not a text: write %s", i+1, what, volumeForm)
	}
	return list, nil
}

// reservedTargets are the paths in the sandbox at which a volume must not be mounted, and reservedTrees those below
// which none must be, either. Below /workspace a session could put a link in the place of the mount point.
var (
	reservedTargets = []string{"/", "/usr", "/bin", "/lib", "/lib64", "/etc", "/tmp"}
	reservedTrees   = []string{"/workspace", "/proc", "/sys", "/dev", "/run/sandlot", "/var/lib/sandlot", "/.sandlot"}
)

// isReserved reports whether no volume must be mounted at a path in the sandbox.
func isReserved(target string) bool {
	return slices.Contains(reservedTargets, target) || slices.ContainsFunc(reservedTrees,
		func(tree string) bool { return target == tree || strings.HasPrefix(target, tree+"/") })
}

func parseVolume(e string) (Volume, error) {
	rest, ro := strings.CutSuffix(e, ":ro")
	if !ro {
		rest = strings.TrimSuffix(rest, ":rw")
	}
	i := strings.LastIndexByte(rest, ':')
	if i <= 0 {
		return Volume{}, fmt.Errorf("%q must be host:sandbox or host:sandbox:ro", e)
	}
	host, target := rest[:i], path.Clean(rest[i+1:])
	if !path.IsAbs(target) || isReserved(target) {
		return Volume{}, fmt.Errorf("%q: the place in the sandbox must be an absolute path of its own, such as /data",
			e)
	}
	resolved, err := filepath.EvalSymlinks(host)
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}
	if err != nil {
		return Volume{}, fmt.Errorf("%q: the host's folder cannot be used: %v", e, err)
	}
	if st, err := os.Stat(resolved); err != nil || !st.IsDir() {
		return Volume{}, fmt.Errorf("%q: %s is not a folder", e, resolved)
	}
	return Volume{Source: resolved, Target: target, ReadOnly: ro}, nil
}

func (c *Config) volumesText() string {
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

func readMemory(v string) (string, error) {
	if v == "" {
		return "", nil
	}
	_, err := parseMegabytes(v)
	return v, err
}

// parseMegabytes parses a size as Docker writes it (bytes, or a number with k, m or g).
func parseMegabytes(v string) (int, error) {
	unit := map[byte]float64{'b': 1, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30}
	digits, factor := strings.ToLower(v), 1.0
	if u, ok := unit[digits[len(digits)-1]]; ok {
		digits, factor = digits[:len(digits)-1], u
	}
	x, err := strconv.ParseFloat(digits, 64)
	mb := int(x * factor / (1 << 20))
	if err != nil || mb < 64 || mb > 1<<24 {
		return 0, fmt.Errorf("must be a size of at least 64 MB, such as 256m or 2g")
	}
	return mb, nil
}

func readCPU(v string) (string, error) {
	if v == "" {
		return "", nil
	}
	if x, err := strconv.ParseFloat(v, 64); err != nil || !(x >= 0.1 && x <= 1024) {
		return "", fmt.Errorf("must be a number of CPUs from 0.1 to 1024")
	}
	return v, nil
}

// The ready packages: what an agent's day of work with data, documents and the web needs.
const (
	readyPython = "numpy,pandas,matplotlib,scipy,scikit-learn,openpyxl,python-docx,python-pptx,pypdf,reportlab,pillow," +
		"duckdb,pyarrow,requests,httpx,beautifulsoup4,pytest,fastapi,uvicorn,uv"
	readyNode = "typescript@5.9.3,tsx,vitest,express,zod"
)

// readPackage checks the name of a package, which may have a version. "none" is no package.
func readPackage(name string) (string, error) {
	if name == "none" {
		return "", nil
	}
	if !regexp.MustCompile(`^@?[A-Za-z0-9][A-Za-z0-9._/@=<>~!\[\]^-]*$`).MatchString(name) {
		return "", fmt.Errorf("%q is not a name of a package, such as pandas or pandas==2.2.3", name)
	}
	return name, nil
}
