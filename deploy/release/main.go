// Release makes the files of a release, in the folder dist/release of the repository, as docs/guide/install.md
// describes:
//
//	go run ./deploy/release -version 1.2.3          twice, in two folders, and compares them
//	go run ./deploy/release -version 1.2.3 -once    without the second time
//
// GoReleaser (deploy/goreleaser.yaml) makes archives, packages and lists of modules. The rest is made here: the
// container image, the manifest, the provenance and the checksums. Everything is made of the commit that is checked
// out, and of nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandlot/internal/release"
)

func main() {
	var m maker
	var once, dirty bool
	flag.StringVar(&m.version, "version", "", "version of the release (default: the tag of the commit, or else 0.0.0 "+
		"with its hash)")
	flag.StringVar(&m.tools, "tools", ".tools", "folder whose bin has goreleaser and cyclonedx-gomod")
	flag.StringVar(&m.targets, "targets", "", "systems to build for, such as linux_amd64,darwin_arm64 (default: all)")
	flag.StringVar(&m.builder, "builder", "urn:sandlot:builder:unnamed", "URI of who builds, for the provenance")
	flag.BoolVar(&once, "once", false, "make it once, and compare nothing")
	flag.BoolVar(&dirty, "dirty", false, "build what is in the folder, also if it is not committed; for tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := m.prepare(ctx, dirty)
	if err == nil {
		err = m.make(ctx)
	}
	if err == nil && !once {
		err = m.makeAgain(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// prepare finds out what is built.
func (m *maker) prepare(ctx context.Context, dirty bool) (err error) {
	if m.tools, err = filepath.Abs(m.tools); err != nil {
		return err
	}
	for _, tool := range tools {
		if _, err := os.Stat(filepath.Join(m.tools, "bin", tool)); err != nil {
			return fmt.Errorf("%w; run `make release`", err)
		}
	}
	if changed, err := git(ctx, "status", "--porcelain"); err != nil || changed != "" && !dirty {
		return errors.Join(err, fmt.Errorf("a release is made of a commit; these are not committed:\n%s", changed))
	}
	if m.commit, err = git(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	}
	date, err := git(ctx, "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	if m.date, err = time.Parse(time.RFC3339, date); err != nil {
		return err
	}
	m.date = m.date.UTC()
	if m.version == "" {
		m.version = "0.0.0-dev.g" + m.commit[:12]
		if tag, err := git(ctx, "describe", "--tags", "--exact-match"); err == nil {
			m.version = tag
		}
	}
	m.version = strings.TrimPrefix(m.version, "v")
	if !release.IsVersion(m.version) {
		return fmt.Errorf("%q is not a version, such as 1.2.3", m.version)
	}
	return nil
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// make makes the release.
func (m *maker) make(ctx context.Context) error {
	config, err := m.configuration()
	if err != nil {
		return err
	}
	defer os.Remove(config)
	if err := m.run(ctx, ".", "goreleaser", "release", "--config", config, "--clean",
		"--skip", "announce,publish,validate"); err != nil {
		return err
	}
	files, programs, err := m.collect()
	if err != nil {
		return err
	}
	image, err := m.writeImage(programs)
	if err != nil {
		return err
	}
	return m.describe(append(files, image))
}

// makeAgain makes the release a second time, in another folder, of nothing that the first time has made, and compares.
func (m *maker) makeAgain(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sandlot-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source := filepath.Join(dir, "source")
	if _, err := git(ctx, "clone", "-q", "--no-checkout", ".", source); err != nil {
		return err
	}
	if _, err := git(ctx, "-C", source, "checkout", "-q", m.commit); err != nil {
		return err
	}
	// Another folder, cache, time zone, language and umask.
	fmt.Println("once more, in", source)
	if err := m.run(ctx, source, "sh", "-c", `umask 077; exec env "$@"`, "sh",
		"GOCACHE="+filepath.Join(dir, "cache"), "TZ=Asia/Kolkata", "LC_ALL=C", "go", "run", "./deploy/release", "-once",
		"-version", m.version, "-tools", m.tools, "-targets", m.targets, "-builder", m.builder); err != nil {
		return err
	}
	if err := compare(out, filepath.Join(source, out)); err != nil {
		return err
	}
	fmt.Println("both times every file was the same")
	return nil
}

// run runs a program with the tools on its path.
func (m *maker) run(ctx context.Context, dir, name string, args ...string) error {
	path := filepath.Join(m.tools, "bin") + string(os.PathListSeparator) + os.Getenv("PATH")
	if name == "goreleaser" {
		name = filepath.Join(m.tools, "bin", name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "PATH="+path, "GORELEASER_CURRENT_TAG=v"+m.version,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", m.date.Unix()),
		// GoReleaser wants to know where it would publish, and a copy of the repository has another place each time.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=remote.origin.url", "GIT_CONFIG_VALUE_0=https://localhost/sandlot")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}
