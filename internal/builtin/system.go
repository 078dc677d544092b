package builtin

import (
	"fmt"

	"sandlot/internal/builtin/sysinstall"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// installAdvice tells users of a template without a root file system of its own what they can do.
const installAdvice = "The system's folders of the template %q (/usr, /etc …) are those of the server's machine, " +
	"and read-only: apt-get, dpkg, yum and apk install nothing here. `pip install`, `uv pip install` and `npm " +
	"install -g` do, and many programs are packages there too. Else the operator of this server can install it on " +
	"the machine, where sandboxes find it at once, or add a template with a root file system of its own: templates " +
	"in sandlot.yaml."

// ownerAdvice tells users of a sandbox in which root cannot give files away what they can do.
const ownerAdvice = "Not permitted: %s. In this sandbox programs cannot give files to other users or become them: its " +
	"runtime has no kernel of its own, its template has a user, or the setting capabilities is none. Unpack with tar " +
	"--no-same-owner, leave chown and su out, and run all as the user that is there; programs that refuse root need a " +
	"template of the runtime gvisor."

// warn adds to a result what was refused to the session's programs, installAdvice if the command tried to install
// something into the root file system, and this is the machine's own, and ownerAdvice if a program was not permitted to
// change an owner or its user.
func (w *Warnings) warn(l *session.Lease, r *tool.Result, command string, outputs ...string) {
	w.NetworkRefused, w.Advice = addRefusals(l, r)
	advise := func(advice string) {
		r.Content = append(r.Content, tool.Text(advice))
		w.Advice = joinNonEmpty(w.Advice, advice)
	}
	t := l.Booted.Template
	if t.Rootfs == "" && t.Image == "" && sysinstall.Tried(command, outputs...) &&
		(!t.HasArchive() || sysinstall.IsReadOnly(outputs...)) {
		advise(fmt.Sprintf(installAdvice, t.Name))
	}
	if line := sysinstall.NotPermitted(outputs...); line != "" && !l.RootIsCapable() {
		advise(fmt.Sprintf(ownerAdvice, line))
	}
}
