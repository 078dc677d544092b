// Package upgrade has the command that replaces Sandlot's programs by a release's.
package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/cli/plain"
	"sandlot/internal/release"
)

// How long a program may take to say its version, to boot a sandbox, and to end when it is interrupted.
const (
	versionTimeout = time.Minute
	doctorTimeout  = 5 * time.Minute
	stopTimeout    = time.Minute
)

// Program is what the command needs of the program that it is part of.
type Program struct {
	Out     io.Writer
	Confirm func(ctx context.Context, question string) error
	Flags   func() ([]string, error)       // those that name the settings, for another sandlot
	Client  func() (*client.Client, error) // of the server of the state folder
}

type command struct {
	Program
	signers           string
	check, yes, print bool
}

// Command returns the command `sandlot upgrade`.
func Command(p Program) *cobra.Command {
	u := command{Program: p}
	c := &cobra.Command{
		Use: "upgrade RELEASE", Short: "Replace Sandlot's programs with a release's", Args: cobra.ExactArgs(1),
		Long: `Replace Sandlot's programs with a release's. RELEASE is the address of its files, or a folder
with them.

The command says what is new, compares the checksums of all that it uses, and asks. If the new programs do not start, or
cannot make a sandbox where the old ones could, the old ones are put back. The state folder is not touched: sessions
sleep while no server runs, and go on with the next one, as the setting on_stop says.`,
		Example: "  sandlot upgrade https://example.com/sandlot/latest --check\n  sandlot upgrade ./dist/release --yes",
	}
	f := c.Flags()
	f.BoolVar(&u.check, "check", false, "say what is new, and change nothing")
	f.BoolVar(&u.yes, "yes", false, "do not ask")
	f.StringVar(&u.signers, "signers", "", "file of allowed signers, as ssh-keygen reads it: one of them must have "+
		"signed the release")
	f.BoolVar(&u.print, "json", false, "print JSON, with --check")
	c.RunE = func(c *cobra.Command, args []string) error { return u.run(c.Context(), args[0]) }
	return c
}

// offer is the JSON of --check.
type offer struct {
	Version string           `json:"version"`
	Release string           `json:"release"`
	Newer   bool             `json:"newer"`
	Changes []release.Change `json:"changes"`
}

func (u *command) run(ctx context.Context, at string) error {
	if u.print && !u.check {
		return errors.New("--json is for --check")
	}
	r, err := release.Open(ctx, at, u.signers)
	if err != nil {
		return err
	}
	newer := release.Compare(r.Version, app.Version) > 0
	if u.print {
		enc := json.NewEncoder(u.Out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(offer{app.Version, r.Version, newer, append([]release.Change{}, r.Since(app.Version)...)})
	}
	if !newer {
		if release.Compare(r.Version, app.Version) == 0 {
			_, err := fmt.Fprintf(u.Out, "This is Sandlot %s already.\n", app.Version)
			return err
		}
		return fmt.Errorf("the release is Sandlot %s, which is older than this one, %s; an older Sandlot may not be "+
			"able to read the state of a newer one", r.Version, app.Version)
	}
	u.describe(r)
	if u.check {
		return nil
	}
	dir, err := folder()
	if err != nil {
		return err
	}
	if !u.yes {
		if err := u.Confirm(ctx, "Replace the programs in "+dir+"?"); err != nil {
			return err
		}
	}
	if err := u.replace(ctx, r, dir); err != nil {
		return err
	}
	return u.sayNext(ctx, r)
}

// describe says what is new in a release.
func (u *command) describe(r *release.Release) {
	fmt.Fprintf(u.Out, "Sandlot %s, of %.10s. This is %s.\n", plain.Cell(r.Version), plain.Cell(r.Date), app.Version)
	for _, c := range r.Since(app.Version) {
		fmt.Fprintf(u.Out, "\n%s\n\n%s\n", plain.Cell(c.Version), plain.Text(c.Text))
	}
	fmt.Fprintln(u.Out)
}

// folder returns the folder of the programs, if they may be replaced.
func folder() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	by, err := os.ReadFile(filepath.Join(dir, release.ManagedName))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	switch kind := strings.TrimSpace(string(by)); kind {
	case "deb":
		return "", errors.New("these programs are of a Debian package; upgrade with the release's .deb, by " +
			"`apt install ./FILE.deb`")
	case "rpm":
		return "", errors.New("these programs are of an RPM package; upgrade with the release's .rpm, by " +
			"`dnf install ./FILE.rpm`")
	case "image":
		return "", errors.New("these programs are of a container image; upgrade by starting the container with the " +
			"release's image")
	default:
		return "", fmt.Errorf("these programs were installed by %q, which has to upgrade them; %s says so", kind,
			filepath.Join(dir, release.ManagedName))
	}
}

// replace replaces the programs. When it fails, they are unchanged.
func (u *command) replace(ctx context.Context, r *release.Release, dir string) (err error) {
	up, err := release.Begin(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	if err := up.Unpack(ctx, r); err != nil {
		return err
	}
	if err := u.checkVersion(ctx, up.Staged(), r.Version); err != nil {
		return fmt.Errorf("the new Sandlot does not start; nothing was changed: %w", err)
	}
	worked, before := u.doctor(ctx, dir)
	if err := up.Replace(); err != nil {
		return fmt.Errorf("the programs could not be replaced; the old ones are put back: %w", err)
	}
	err = u.checkVersion(ctx, dir, r.Version)
	if works, report := u.doctor(ctx, dir); err == nil && worked && !works {
		err = fmt.Errorf("`sandlot doctor` says:\n%s", report)
	}
	if err != nil {
		return fmt.Errorf("the new Sandlot does not work here; the programs of before are put back: %w", err)
	}
	if !worked {
		fmt.Fprintf(u.Out, "Sandboxes did not work here before the upgrade either:\n%s", before)
	}
	return up.Keep()
}

// checkVersion returns an error unless the program in dir starts, and has that version.
func (u *command) checkVersion(ctx context.Context, dir, version string) error {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := u.start(ctx, dir, "version", "--json")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, plain.Text(string(out)))
	}
	var is struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(out, &is); err != nil || is.Version != version {
		return fmt.Errorf("it says that it is %s, and not %s", plain.Cell(string(out)), version)
	}
	return nil
}

// doctor reports whether the programs in dir can make a sandbox, and what they say.
func (u *command) doctor(ctx context.Context, dir string) (works bool, report string) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	flags, err := u.Flags()
	if err != nil {
		return false, err.Error() + "\n"
	}
	out, err := u.start(ctx, dir, append(flags, "doctor")...)
	return err == nil, plain.Text(string(out))
}

// start runs the program in dir, and returns what it prints. It is interrupted when ctx ends, so that it removes
// what it has made.
func (u *command) start(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(dir, release.Main()), args...)
	cmd.Cancel = func() error {
		if cmd.Process.Signal(os.Interrupt) == nil {
			return nil
		}
		return cmd.Process.Kill() // Windows has no such signal
	}
	cmd.WaitDelay = stopTimeout
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

// sayNext says what a running server needs.
func (u *command) sayNext(ctx context.Context, r *release.Release) error {
	fmt.Fprintf(u.Out, "This is Sandlot %s now.\n", r.Version)
	c, err := u.Client()
	if err != nil || !c.Alive(ctx) {
		return err
	}
	_, err = fmt.Fprintln(u.Out, `
The server that runs is the one of before. Restart it as it was started: the service by its manager, such as
"systemctl restart sandlot", else by "sandlot stop" and "sandlot serve". Sessions sleep meanwhile, with their variables
and processes, and go on at their next use (on_stop: keep lets them run on).`)
	return err
}
