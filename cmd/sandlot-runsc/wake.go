package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"
)

// wake is the command that starts a sandbox from an image. It does what gVisor's own `restore -detach` does, for an
// unprivileged user too.
type wake struct {
	bundle, image, pidFile string
}

// Name implements subcommands.Command.
func (*wake) Name() string { return "wake" }

// Synopsis implements subcommands.Command.
func (*wake) Synopsis() string { return "start a sandbox from an image" }

// Usage implements subcommands.Command.
func (*wake) Usage() string { return "wake -bundle DIR -image-path DIR -pid-file FILE ID\n" }

// SetFlags implements subcommands.Command.
func (w *wake) SetFlags(f *flag.FlagSet) {
	f.StringVar(&w.bundle, "bundle", "", "folder of the OCI bundle")
	f.StringVar(&w.image, "image-path", "", "folder of the image")
	f.StringVar(&w.pidFile, "pid-file", "", "file for the process id of the sandbox")
}

// Execute implements subcommands.Command.
func (w *wake) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if f.NArg() != 1 || w.bundle == "" || w.image == "" {
		f.Usage()
		return subcommands.ExitUsageError
	}
	if err := w.run(f.Arg(0), args[0].(*config.Config)); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-runsc wake:", err)
		return subcommands.ExitFailure
	}
	*args[1].(*unix.WaitStatus) = 0
	return subcommands.ExitSuccess
}

func (w *wake) run(id string, conf *config.Config) error {
	if conf.Rootless { // this program starts again as the root of a user namespace, and then goes on here
		if err := specutils.MaybeRunAsRoot(); err != nil {
			return fmt.Errorf("entering a user namespace: %w", err)
		}
	}
	spec, err := specutils.ReadSpec(w.bundle, conf)
	if err != nil {
		return fmt.Errorf("reading the bundle: %w", err)
	}
	if err := specutils.FixConfig(conf, spec); err != nil {
		return fmt.Errorf("applying the bundle's annotations: %w", err)
	}
	c, err := container.New(conf, container.Args{ID: id, Spec: spec, BundleDir: w.bundle, PIDFile: w.pidFile})
	if err != nil {
		return fmt.Errorf("creating the sandbox: %w", err)
	}
	if err := c.Restore(conf, w.image, false, false, nil); err != nil {
		c.Destroy()
		return fmt.Errorf("restoring the sandbox: %w", err)
	}
	return nil
}
