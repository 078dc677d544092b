package builtin

import (
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/builtin/sysinstall"
	"sandlot/internal/image"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// installAdvice tells users of a template without a root file system of its own what they can do.
const installAdvice = "The system's folders of the template %q (/usr, /etc …) are those of the server's machine, " +
	"and read-only: apt-get, dpkg, yum and apk install nothing here. `pip install`, `uv pip install` and `npm " +
	"install -g` do, and many programs are packages there too. Else the operator of this server can install it on " +
	"the machine, where sandboxes find it at once, or add a template with its own root file system: templates " +
	"in sandlot.yaml."

// archiveComes tells users of a sandbox that started before its server had fetched the lists of packages what to do.
const archiveComes = "apt-get installs nothing in this sandbox: when it started, the server was still fetching the lists of " +
	"packages, which takes a minute or two after its first start. A sandbox that starts later has them: end this one with " +
	"stop_session (the home keeps its files), and use the session again, or session_id \"new\". If that does not help, " +
	"the operator sees in the server's log why the lists were not fetched."

// adviceToInstall tells who tried to install something into the system's folders of a template's sandbox, which said
// outputs, what to do instead; empty: it can be done.
func adviceToInstall(t *image.Template, outputs ...string) string {
	switch {
	case t.Rootfs != "" || t.Image != "" || t.HasArchive() && !sysinstall.IsReadOnly(outputs...):
		return ""
	case t.ArchiveComes:
		return archiveComes
	}
	return fmt.Sprintf(installAdvice, t.Name)
}

// packageComes tells users of a sandbox that started before its server had installed the ready packages what to do.
const packageComes = "When this sandbox started, the server was still installing the packages that all sandboxes share, %s " +
	"among them, which takes some minutes after its first start. `%s install %[1]s` installs it here at once. A sandbox that " +
	"starts later has them: end this one with stop_session (the home keeps its files), and use the session again, or " +
	"session_id \"new\"."

// adviceToImport tells who misses a package that was still to come to a template when its sandbox started what to do;
// empty: the output says nothing of that.
func adviceToImport(t *image.Template, outputs ...string) string {
	if len(t.PackagesCome) == 0 {
		return ""
	}
	name := sysinstall.MissingModule(outputs...)
	if !slices.Contains(t.PackagesCome, name) {
		return ""
	}
	installer := "pip"
	if slices.ContainsFunc(outputs, func(o string) bool { return strings.Contains(o, "Cannot find ") }) {
		installer = "npm"
	}
	return fmt.Sprintf(packageComes, name, installer)
}

// ownerAdvice tells users of a sandbox in which root cannot give files away what they can do.
const ownerAdvice = "Not permitted: %s. In this sandbox programs cannot give files to other users or become them: its " +
	"runtime has no kernel of its own, its template has a user, or the setting capabilities is none. Unpack with tar " +
	"--no-same-owner, leave chown and su out, and run all as the user that is there; programs that refuse root need a " +
	"template of the runtime gvisor."

// warn adds to a result what was refused to the session's programs, installAdvice if the command tried to install
// something into the root file system, and this is the machine's own, packageComes if a package is missing that is to
// come, and ownerAdvice if a program was not permitted to
// change an owner or its user.
func (w *Warnings) warn(l *session.Lease, r *tool.Result, command string, outputs ...string) {
	w.NetworkRefused, w.Advice = addRefusals(l, r)
	advise := func(advice string) {
		r.Content = append(r.Content, tool.Text(advice))
		w.Advice = joinNonEmpty(w.Advice, advice)
	}
	if sysinstall.Tried(command, outputs...) {
		if advice := adviceToInstall(l.Booted.Template, outputs...); advice != "" {
			advise(advice)
		}
	}
	if advice := adviceToImport(l.Booted.Template, outputs...); advice != "" {
		advise(advice)
	}
	if line := sysinstall.NotPermitted(outputs...); line != "" && !l.RootIsCapable() {
		advise(fmt.Sprintf(ownerAdvice, line))
	}
}
