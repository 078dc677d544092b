package main

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms"
	boot "gvisor.dev/gvisor/runsc/boot/filter"
	bootconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// The filters that were compiled are those that gVisor would compile, at the
// version of go.mod, with Sandlot's flags.
func TestFilters(t *testing.T) {
	if os.Getpid() != 1 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFilters$", "-test.v")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if os.Getuid() != 0 {
			id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = id
		}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), "is the same") != 4 {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	useFilters([]string{"runsc-sandbox", "boot", "id"})
	useFilters([]string{"runsc-gofer", "gofer", "id"})
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	infos := systrap.PrecompiledSeccompInfo()
	if len(infos) != 1 {
		t.Fatalf("systrap has %d kinds of filters", len(infos))
	}
	for _, hostNetwork := range []bool{false, true} {
		o := boot.Options{Platform: infos[0], HostNetwork: hostNetwork, HostFilesystem: true, ControllerFD: 17}
		rules, deny := bootconfig.Rules(o)
		p, ok := boot.GetPrecompiled(o.ConfigKey())
		same(t, o.ConfigKey(), p, ok, o.Vars(), rules, deny, bootconfig.SeccompOptions(o))
	}
	for _, lisafs := range []bool{false, true} {
		o := gofer.Options{UDSOpenEnabled: true, DirectFS: true, LisafsNeeded: lisafs,
			ExtraRules: []seccomp.SyscallRules{new(noHostSockets).SeccompRules()}}
		rules, deny := goferconfig.Rules(o)
		p, ok := gofer.GetPrecompiled(o.ConfigKey())
		same(t, o.ConfigKey(), p, ok, o.Vars(), rules, deny, seccomp.ProgramOptions{})
	}
}

func same(t *testing.T, name string, p precompiledseccomp.Program, ok bool, vars precompiledseccomp.Values, rules,
	deny seccomp.SyscallRules, o seccomp.ProgramOptions) {
	t.Helper()
	if !ok {
		t.Errorf("there is no filter for %s", name)
		return
	}
	got, err := p.RenderInstructions(vars)
	if err != nil {
		t.Error(err)
		return
	}
	o.DefaultAction = seccomp.KillProcess // gVisor asks the kernel, and an emulated one does not know
	want, _, err := (&seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}},
		Options: o}).Build()
	if err != nil {
		t.Error(err)
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the filter of %s is another than gVisor's own (%d instructions, %d): run cmd/sandlot-runsc/generate",
			name, len(got), len(want))
		return
	}
	fmt.Println(name, "is the same")
}
