package agent

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
)

// Environment returns the environment that a runtime starts the agent with: the template's
// variables, and the agent's own, which the agent removes before it starts programs. Brokered
// says that the runtime gives the sandbox no network: the agent passes all connections to the
// host.
func Environment(s sandbox.Spec, brokered bool) ([]string, error) {
	c := Settings{Template: s.Template, Limits: s.Limits}
	for _, m := range s.Mounts {
		c.Roots = append(c.Roots, FileRoot{Path: m.Target, ReadOnly: m.ReadOnly})
	}
	// It has to be deterministic: a runtime compares it to find out whether a prebooted sandbox fits.
	boot, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.Boot{Configure: c.message(),
		Warm: s.Template.Warm, Network: brokered})
	if err != nil {
		return nil, fmt.Errorf("the agent's settings: %w", err)
	}
	var env []string
	for k, v := range variables(s.Template, s.Limits.CPUs) {
		if slices.Contains(wire.GoVariables, k) {
			k = wire.EnvProgram + k
		}
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	if s.OrphanTimeout > 0 {
		env = append(env, wire.EnvOrphan+"="+s.OrphanTimeout.String())
	}
	if who := userOf(s.Template); who != rootUser {
		env = append(env, wire.EnvUser+"="+who)
	}
	return append(env, wire.EnvSecret+"="+hex.EncodeToString(s.Secret), wire.EnvSocket+"="+
		path.Join(wire.SocketDir, wire.Socket),
		wire.EnvBoot+"="+base64.StdEncoding.EncodeToString(boot)), nil
}

// variables returns the variables of a template, without the agent's: an image may have any. Those that say how
// many threads programs start are for a number of CPUs (0: no limit), as a sandbox sees at least two processors. None
// is more than this machine has.
func variables(t *image.Template, cpus float64) map[string]string {
	env := map[string]string{}
	if cpus > 0 {
		n := min(int(math.Ceil(cpus)), runtime.NumCPU())
		for _, name := range threads {
			env[name] = strconv.Itoa(n)
		}
		env["MAKEFLAGS"] = fmt.Sprintf("-j%d", n)
		env["UV_THREADPOOL_SIZE"] = strconv.Itoa(max(n, 4)) // they wait for files and names, so there are never fewer than usual
	}
	maps.Copy(env, t.Env)
	maps.DeleteFunc(env, func(name, _ string) bool { return strings.HasPrefix(name, wire.EnvPrefix) })
	return env
}

// threads are the variables by which programs and libraries know how many threads, or processes, to start.
var threads = []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
	"LOKY_MAX_CPU_COUNT", "RAYON_NUM_THREADS", "GOMAXPROCS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS"}

// rootUser is the user that an agent has without wire.EnvUser.
var rootUser = wire.User{}.String()

// userOf returns the user of a template, and where its programs start, as the agent reads them.
func userOf(t *image.Template) string {
	w := wire.User{Workdir: t.Workdir}
	if u := t.User; !u.IsRoot() {
		w.UID, w.GID, w.Groups, w.Name, w.Home = u.UID, u.GID, u.Groups, u.Name, u.Home
	}
	return w.String()
}

// Capabilities returns the capabilities that a runtime gives the agent in its bounding, permitted and
// effective sets. The agent runs as root, and the programs that it starts have none of them. It
// empties the bounding set, sets up the network of a sandbox that is brokered, and, for a user
// other than root, starts programs, handles files and sends signals in that user's place.
func Capabilities(t *image.Template, brokered bool) []string {
	var list []string
	if brokered {
		list = append(list, "CAP_NET_ADMIN", "CAP_NET_RAW")
	}
	if !t.User.IsRoot() {
		list = append(list, "CAP_SETUID", "CAP_SETGID", "CAP_KILL")
	}
	if len(list) == 0 {
		return nil // the bounding set is empty already
	}
	return append(list, "CAP_SETPCAP")
}
