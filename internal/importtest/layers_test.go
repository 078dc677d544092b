package importtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// A place is where a package stands: its layer, and the packages of the same layer
// that it may import. Those of the layers below it may import, as far as the table
// `only` lets it.
type place struct{ layer, beside string }

// ranks orders the layers. "wire" is what the host and the agent inside share.
// "adapter" are implementations of contracts of the layers below; app alone knows
// them. "inside" runs in the sandbox, and shares nothing with the host but the wire.
var ranks = map[string]int{
	"wire": 0, "L0": 1, "L1": 2, "L2": 3, "adapter": 4, "L3": 5, "L4": 6, "L5": 7, "program": 8, "test": 9,
}

// places lists every package, and of those below test/ only who imports others of tests, without "sandlot/internal/".
var places = map[string]place{
	"sandlot/proto/agentv1":                {"wire", ""},
	"sandlot/proto/agentv1/agentv1connect": {"wire", "sandlot/proto/agentv1"},
	"agent/wire":                           {"wire", "sandlot/proto/agentv1"},
	"plural":                               {"wire", ""},
	"toolfolder":                           {"wire", ""},
	"atomicfile":                           {"L0", ""},
	"autostart":                            {"L0", "atomicfile"},
	"certificate":                          {"L0", ""},
	"clientconfig":                         {"L0", "expand fault"},
	"checkup":                              {"L0", "fault"},
	"config": {"L0",
		"clientconfig config/entry fault fileacl pathwalk pkgregistry platform secret servers/spec"},
	"config/entry":        {"L0", "clientconfig expand fault servers/spec"},
	"dockercommand":       {"L0", "atomicfile fileacl pathwalk platform"},
	"pathwalk":            {"L0", ""},
	"platform":            {"L0", ""},
	"wsl":                 {"L0", ""},
	"expand":              {"L0", ""},
	"fault":               {"L0", ""},
	"keyring":             {"L0", "fault secret"},
	"dpkg":                {"L0", ""},
	"pkgregistry":         {"L0", "processgroup"},
	"fileacl":             {"L0", ""},
	"filelock":            {"L0", ""},
	"ipv4in6":             {"L0", ""},
	"logfile":             {"L0", ""},
	"proc":                {"L0", ""},
	"processgroup":        {"L0", ""},
	"rawjson":             {"L0", ""},
	"release":             {"L0", "filelock"},
	"release/releasetest": {"test", ""},
	"revision":            {"L0", ""},
	"revision/schematest": {"test", ""},
	"schematype":          {"L0", ""},
	"secret":              {"L0", ""},
	"terminal":            {"L0", ""},
	"tree":                {"L0", ""},
	"cacerts":             {"L0", ""},
	"writes":              {"L0", ""},
	"event":               {"L1", ""},
	"policy":              {"L1", "auth"},
	"question":            {"L1", "auth policy"},
	"mcpsession":          {"L1", "auth"},
	"auth":                {"L1", "event"},
	"auth/oidc":           {"L1", "auth"},
	"auth/oidc/oidctest":  {"test", ""},
	"image":               {"L1", ""},
	"image/imagetest":     {"test", "oci/rootfs"},
	"limit":               {"L1", "auth"},
	"quota":               {"L1", "auth"},
	"oci/rootfs":          {"L1", ""},
	"once":                {"L1", "auth"},
	"sandbox":             {"L1", "image"},
	"tool":                {"L1", "auth limit policy"},
	"toolview":            {"L1", "auth tool"},
	"agent":               {"L2", "agent/direct"},
	"audit":               {"L2", ""},
	"builtin": {"L2",
		"agent builtin/definition builtin/sysinstall port servers servers/install session session/property session/reason " +
			"registry snapshot toolcall volume"},
	"builtin/definition": {"L2", ""},
	"builtin/sysinstall": {"L2", ""},
	"finder":             {"L2", "servers"},
	"snapshot":           {"L2", "session"},
	"egress":             {"L2", ""},
	"egress/bound":       {"L2", "egress vault"},
	"oci":                {"L2", ""},
	"inventory":          {"L2", "oci template"},
	"pool":               {"L2", "agent egress workspace"},
	"port":               {"L2", ""},
	"session": {"L2",
		"agent egress pool session/property session/reason session/record session/usage"},
	"session/property": {"L2", "session/record"},
	"session/record":   {"L2", "egress"},
	"session/state":    {"L0", ""},
	"session/usage":    {"L2", "egress"},
	"session/reason":   {"L2", "agent egress pool"},
	"servers": {"L2",
		"egress pool servers/install servers/instance servers/oauth servers/process session session/reason mcpclient " +
			"mcpclient/transport"},
	"servers/instance": {"L2",
		"egress mcpclient mcpclient/transport servers/install servers/oauth servers/process session"},
	"guest": {"inside",
		"guest/confine guest/files guest/interp guest/network guest/process guest/tools " +
			"guest/user"},
	"servers/install":     {"L2", "agent pool servers/process session"},
	"servers/process":     {"L2", "agent egress session mcpclient/transport"},
	"servers/oauth":       {"L2", "mcpclient/transport"},
	"servers/serverstest": {"test", ""},
	"servers/catalog":     {"L1", "tool"},
	"servers/diagnosis":   {"L1", "servers/catalog"},
	"servers/spec":        {"L0", "fault"},
	"servers/state":       {"L0", ""},
	"servers/toolfiles":   {"L1", ""},
	"mcpclient":           {"L2", "mcpclient/transport"},
	"mcpclient/transport": {"L2", ""},
	"registry":            {"L2", ""},
	"telemetry":           {"L2", ""},
	"toolcall":            {"L2", "agent"},
	"tty":                 {"L2", "agent session"},
	"template":            {"L2", "agent egress oci pool"},
	"vault":               {"L2", ""},
	"volume":              {"L2", ""},
	"workspace":           {"L2", ""},
	"runtime/gvisor": {"adapter",
		"runtime/gvisor/cgroup runtime/gvisor/frozen runtime/gvisor/hostfile runtime/gvisor/root " +
			"runtime/graft runtime/pinned runtime/program runtime/socket runtime/specfile"},
	"runtime/gvisor/frozen": {"adapter",
		"runtime/gvisor/cgroup runtime/gvisor/hostfile runtime/gvisor/kept runtime/specfile"},
	"runtime/gvisor/cgroup":   {"adapter", ""},
	"runtime/gvisor/hostfile": {"adapter", "agent/wire"},
	"runtime/gvisor/kept":     {"adapter", ""},
	"runtime/graft":           {"adapter", ""},
	"runtime/pinned":          {"adapter", ""},
	"runtime/gvisor/root":     {"adapter", ""},
	"runtime/carrier":         {"adapter", ""},
	"runtime/docker": {"adapter",
		"runtime/carrier runtime/docker/volumes runtime/program runtime/socket " +
			"runtime/specfile"},
	"runtime/docker/volumes":    {"adapter", ""},
	"runtime/docker/dockertest": {"test", "image/imagetest"},
	"runtime/microsandbox": {"adapter",
		"runtime/carrier runtime/program runtime/socket runtime/specfile"},
	"runtime/microsandbox/msbtest": {"test", "image/imagetest"},
	"runtime/program":              {"adapter", ""},
	"runtime/socket":               {"adapter", ""},
	"runtime/specfile":             {"adapter", ""},
	"store":                        {"adapter", ""},
	"store/storetest":              {"test", ""},
	"hub":                          {"L3", ""},
	"replica":                      {"adapter", "store"},
	"runtime/qemu":                 {"adapter", "runtime/carrier runtime/program runtime/specfile"},
	"api": {"L4",
		"api/conn api/forward api/live api/metric api/openapi api/page api/preview api/protocol console gateway gateway/rpc"},
	"api/forward":                        {"L4", ""},
	"api/client":                         {"L4", "api/conn api/protocol"},
	"api/conn":                           {"L4", ""},
	"api/live":                           {"L4", "api/conn api/protocol"},
	"api/metric":                         {"L4", ""},
	"api/openapi":                        {"L4", ""},
	"api/page":                           {"L4", ""},
	"api/preview":                        {"L4", "api/conn api/protocol console"},
	"api/protocol":                       {"L4", ""},
	"console":                            {"L4", ""},
	"tui":                                {"L4", "api/client api/protocol"},
	"gateway":                            {"L4", "gateway/bare gateway/fastpath gateway/relay gateway/rpc"},
	"gateway/fastpath":                   {"L4", "gateway/relay gateway/rpc"},
	"gateway/bare":                       {"L4", "gateway/rpc"},
	"gateway/relay":                      {"L4", "gateway/rpc"},
	"gateway/rpc":                        {"L4", ""},
	"app":                                {"L5", "app/registries app/restore app/stack"},
	"app/registries":                     {"L5", ""},
	"app/stack":                          {"L5", ""},
	"app/restore":                        {"L5", ""},
	"cli":                                {"L5", "app cli/doctor cli/image cli/install cli/connection cli/plain cli/service cli/upgrade"},
	"cli/install":                        {"L5", "app cli/plain"},
	"cli/image":                          {"L5", ""},
	"cli/connection":                     {"L5", "app cli/plain"},
	"cli/plain":                          {"L5", ""},
	"cli/service":                        {"L5", "app"},
	"cli/doctor":                         {"L5", "app"},
	"cli/upgrade":                        {"L5", "app cli/plain"},
	"guest/confine":                      {"inside", ""},
	"guest/process":                      {"inside", "guest/user"},
	"guest/files":                        {"inside", "guest/user"},
	"guest/interp":                       {"inside", "guest/interp/direct guest/process guest/user"},
	"guest/interp/direct":                {"inside", ""},
	"guest/guesttest":                    {"test", ""},
	"guest/gocache":                      {"inside", ""},
	"guest/machine":                      {"inside", ""},
	"guest/mcpcommand":                   {"inside", "agent/wire"},
	"guest/network":                      {"inside", ""},
	"guest/trial":                        {"inside", "guest/process"},
	"guest/tools":                        {"inside", ""},
	"guest/user":                         {"inside", ""},
	"sandlot/cmd/sandlot":                {"program", ""},
	"sandlot/deploy/release":             {"program", ""},
	"sandlot/deploy/release/check":       {"test", ""},
	"sandlot/cmd/sandlot-agent":          {"program", ""},
	"sandlot/cmd/sandlot-runsc":          {"program", ""},
	"sandlot/cmd/sandlot-runsc/generate": {"program", ""},
	"runtime/program/pack":               {"program", ""},
	"console/build":                      {"program", ""},
	"agent/command":                      {"L1", ""},
	"agent/direct":                       {"L2", ""},
	"agent/agenttest":                    {"test", ""},
	"importtest":                         {"test", ""},
	"leaktest":                           {"test", ""},
	"sandbox/sandboxtest":                {"test", "agent/agenttest"},
	"sandlot/test/bench":                 {"test", "image/imagetest runtime/docker/dockertest"},
}

// imports yields what each package of ours imports of ours, by their short names.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	short := func(p string) string { return strings.TrimPrefix(p, "sandlot/internal/") }
	of := map[string][]string{}
	for p, tos := range sources(t, false) {
		of[short(p)] = nil
		for to := range tos {
			if below(to, "sandlot") {
				of[short(p)] = append(of[short(p)], short(to))
			}
		}
	}
	if len(of) < 40 {
		t.Fatalf("only %d packages were found", len(of))
	}
	return of
}

func ofTests(p string) bool { return below(p, "sandlot/test") }

// TestLayers: every package has a place, and imports what stands below it, or beside
// it by the table.
func TestLayers(t *testing.T) {
	all := imports(t)
	for from, tos := range all {
		at, listed := places[from]
		if !listed && ofTests(from) {
			at, listed = place{layer: "test"}, true
		}
		if !listed {
			t.Errorf("%s is not in the table: give it a line in `places`, with its layer", from)
			continue
		}
		for _, to := range tos {
			if slices.Contains(strings.Fields(at.beside), to) || places[to].layer == "wire" && at.layer != "wire" {
				continue
			}
			switch there := places[to]; {
			case at.layer == "inside":
				t.Errorf("%s imports %s, and runs in the sandbox: the wire alone is shared", from, to)
			case there.layer == "inside" && at.layer != "program" && at.layer != "test":
				t.Errorf("%s imports %s, which runs in the sandbox", from, to)
			case there.layer == at.layer:
				t.Errorf("%s imports %s of its own layer %s: name it in the `beside` of %[1]s's line, if that is meant",
					from, to, at.layer)
			case ranks[there.layer] > ranks[at.layer]:
				t.Errorf("%s → %s: imports up the layers, and must not", from, to)
			}
		}
	}
	for p, at := range places {
		tos, there := all[p]
		if !there {
			t.Errorf("there is no package %s: delete its line in `places`", p)
		}
		for _, b := range strings.Fields(at.beside) {
			if !slices.Contains(tos, b) {
				t.Errorf("%s does not import %s: take that out of its line in `places`", p, b)
			}
		}
	}
}

// TestEdgesCallTheHub: an edge calls hub, and nothing below it but nouns.
func TestEdgesCallTheHub(t *testing.T) {
	for from, tos := range imports(t) {
		if places[from].layer != "L4" {
			continue
		}
		for _, to := range tos {
			switch places[to].layer {
			case "wire", "L2", "adapter":
				t.Errorf("%s → %s: goes around hub, and must not", from, to)
			}
		}
	}
}

// TestTops: what is above the edges is app and cli, so that nothing that serves clients stands there.
func TestTops(t *testing.T) {
	for p, at := range places {
		switch {
		case at.layer == "L3" && p != "hub",
			at.layer == "L5" && !below(p, "app") && !below(p, "cli"):
			t.Errorf("%s has the layer %s, which is for hub (L3), app and cli (L5): an edge has L4", p, at.layer)
		}
	}
}

// TestNoCircles: the folders of internal, each with what is below it and of the same layer, import each other in
// no circle. Go refuses circles of packages alone.
func TestNoCircles(t *testing.T) {
	for _, c := range circles(rooms(imports(t))) {
		t.Errorf("a circle: %s", c)
	}
	found := circles(map[string]map[string]bool{"a": {"b": true}, "b": {"c": true}, "c": {"b": true}, "d": {"a": true}})
	if !slices.Equal(found, []string{"b → c → b"}) {
		t.Errorf("in an example: %q", found)
	}
}

// rooms returns which folder of internal imports which, as FOLDER LAYER. Packages for tests are left out.
func rooms(all map[string][]string) map[string]map[string]bool {
	of := map[string]map[string]bool{}
	room := func(p string) string {
		name, _, _ := strings.Cut(p, "/")
		return name + " " + places[p].layer
	}
	for from, tos := range all {
		if below(from, "sandlot") || places[from].layer == "test" {
			continue
		}
		if of[room(from)] == nil {
			of[room(from)] = map[string]bool{}
		}
		for _, to := range tos {
			if room(to) != room(from) {
				of[room(from)][room(to)] = true
			}
		}
	}
	return of
}

// circles returns the circles that a walk along the arrows finds: at least one where there is any.
func circles(of map[string]map[string]bool) (found []string) {
	done := map[string]bool{}
	var path []string
	var walk func(string)
	walk = func(at string) {
		if i := slices.Index(path, at); i >= 0 {
			found = append(found, strings.Join(append(slices.Clone(path[i:]), at), " → "))
			return
		}
		if done[at] {
			return
		}
		done[at] = true
		path = append(path, at)
		for _, to := range slices.Sorted(maps.Keys(of[at])) {
			walk(to)
		}
		path = path[:len(path)-1]
	}
	for _, from := range slices.Sorted(maps.Keys(of)) {
		walk(from)
	}
	return found
}
