package install

import (
	"context"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Install runs the commands that install what the request names.
func (i *Installer) Install(ctx context.Context) (Result, error) {
	// One process makes the folder, and finds out whether the sandbox has a uv that starts.
	const script = `mkdir -p -- "$0" && { uv --version 2> /dev/null || true; }`
	out, err := i.run(ctx, "", false, "sh", "-c", script, i.folder)
	if err != nil {
		return Result{}, err
	}
	i.hasUV = strings.HasPrefix(out, "uv ")
	switch i.request.Type {
	case "npm":
		what := i.request.Spec
		if i.request.SHA256 != "" {
			if what, err = i.packNPM(ctx); err != nil {
				return Result{}, err
			}
		}
		return i.installNPM(ctx, what)
	case "pip":
		return i.installPip(ctx, i.request.Spec)
	}
	return i.installGit(ctx)
}

// The commands that install, as far as they are known before the installation.

func npmInstallCommand(folder, spec string) []string {
	return []string{"npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=http", "--", spec}
}

// packageFolder has a package's file until that is installed, and the requirement with its digest.
const packageFolder = ".package"

func npmPackCommand(folder, spec string) []string {
	return []string{"npm", "pack", "--loglevel=http", "--pack-destination", path.Join(folder, packageFolder), "--", spec}
}

// checkFileCommand returns the command that checks the one file of packageFolder, and prints its path.
func checkFileCommand(sha256 string) []string {
	return []string{"sh", "-c", `set -- ` + packageFolder + `/*; [ $# -eq 1 ] && [ -f "$1" ] || exit 1; ` +
		`echo "$0  $1" | sha256sum -c - >&2 && printf '%s\n' "$1"`, sha256}
}

// packNPM fetches the file of a package, without running anything of it, and returns its path if it has its digest.
func (i *Installer) packNPM(ctx context.Context) (string, error) {
	if _, err := i.run(ctx, i.folder, false, "sh", "-c", `rm -rf "$0" && mkdir "$0"`, packageFolder); err != nil {
		return "", err
	}
	if _, err := i.run(ctx, i.folder, true, npmPackCommand(i.folder, i.request.Spec)...); err != nil {
		return "", err
	}
	out, err := i.run(ctx, i.folder, true, checkFileCommand(i.request.SHA256)...)
	if err != nil {
		return "", i.otherDigest(err)
	}
	return strings.TrimSpace(out), nil
}

// otherDigest returns the fault for a package whose file is not the one that was meant.
func (i *Installer) otherDigest(err error) error {
	f := fault.From(err)
	f.Message = "no file of this package has the digest " + i.request.SHA256 + ": nothing of it is installed. " + f.Message
	return f
}

// hashedArguments are the arguments of pip and uv for the requirement with a digest. Both refuse other files before they
// run anything of them.
var hashedArguments = []string{"--force-reinstall", "--no-deps", "--require-hashes", "-r", packageFolder + "/requirement.txt"}

// hashedRequirement is the line of a requirements file for a package with a digest.
func hashedRequirement(r Request) string { return r.Spec + " --hash=sha256:" + r.SHA256 }

// installHashed installs the package whose file has the digest, without what it needs.
func (i *Installer) installHashed(ctx context.Context, venv string) error {
	const script = `rm -rf "$0" && mkdir "$0" && printf '%s\n' "$1" > "$0/requirement.txt"`
	if _, err := i.run(ctx, i.folder, false, "sh", "-c", script, packageFolder, hashedRequirement(i.request)); err != nil {
		return err
	}
	if err := i.pip(ctx, i.folder, venv, hashedArguments...); err != nil {
		return i.otherDigest(err)
	}
	return nil
}

// makeVenvCommand returns the command that makes a virtual environment. It has no pip, which is
// much faster.
func makeVenvCommand(venv string) []string {
	return []string{"python3", "-m", "venv", "--without-pip", venv}
}

// IsPython reports whether a server with programs in these folders was installed into a virtual environment.
func IsPython(folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return strings.HasSuffix(f, "/venv/bin") })
}

// pipCommand returns the command that installs into a virtual environment. It has no pip: the one outside of it is
// used.
func pipCommand(venv string, what ...string) []string {
	return append([]string{"python3", "-m", "pip", "--python", path.Join(venv, "bin/python"), "install",
		"--no-compile"}, what...)
}

// uvCommand returns the command that is used in place of pip's where the sandbox has uv: that takes a third of the
// time.
func uvCommand(venv string, what ...string) []string {
	return append([]string{"uv", "pip", "install", "--python", path.Join(venv, "bin/python"),
		"--no-compile-bytecode"}, what...)
}

// pip installs into a virtual environment, with uv where the sandbox has it.
func (i *Installer) pip(ctx context.Context, cwd, venv string, what ...string) error {
	command := pipCommand(venv, what...)
	if i.hasUV {
		command = uvCommand(venv, what...)
	}
	_, err := i.run(ctx, cwd, true, command...)
	return err
}

func cloneCommand(from, ref, repo string) []string {
	if ref == "" {
		return []string{"git", "clone", "--depth", "1", "--", from, repo}
	}
	return []string{"git", "clone", "--depth", "1", "--branch", ref, "--", from, repo}
}

// installNPM installs a package of npm, and finds its programs.
func (i *Installer) installNPM(ctx context.Context, spec string) (Result, error) {
	if _, err := i.run(ctx, i.folder, true, npmInstallCommand(i.folder, spec)...); err != nil {
		return Result{}, err
	}
	result := Result{Cwd: i.folder, Path: []string{path.Join(i.folder, "node_modules/.bin")}}
	out, err := i.run(ctx, i.folder, false, "node", "-e", npmFindScript, spec)
	if err != nil {
		return Result{}, err
	}
	return result, readPrograms(out, &result)
}

// npmFindScript is a script that prints the programs of the package that a specification names
// or, if the specification has no name, of the package that was installed last.
const npmFindScript = `
const fs = require('fs'), path = require('path'), spec = process.argv[1]
const own = JSON.parse(fs.readFileSync('package.json')).dependencies || {}
const base = spec.startsWith('@') ? '@' + spec.slice(1).split('@')[0] : spec.split('@')[0]
let name = own[base] !== undefined ? base : Object.keys(own).find(n => own[n].includes(spec)) || Object.keys(own).pop()
const p = JSON.parse(fs.readFileSync(path.join('node_modules', name, 'package.json')))
const bins = typeof p.bin === 'string' ? [p.name.split('/').pop()] : Object.keys(p.bin || {})
console.log(JSON.stringify({bins, version: p.version}))
`

// readPrograms reads the output of one of the scripts in this file. Hostile code may have changed it.
func readPrograms(out string, result *Result) error {
	var found struct {
		Bins    []string
		Version string
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &found); err != nil {
		return fault.New(fault.CommandExecution,
			"Sandlot could not find the installed program in %s; say with start how its server starts", result.Cwd)
	}
	for _, b := range found.Bins[:min(len(found.Bins), 100)] {
		if spec.NeedsNoQuotes(b) && !strings.Contains(b, "/") {
			result.Bins = append(result.Bins, b)
		}
	}
	result.Version = spec.SafeText(found.Version, 60)
	return nil
}

// installPip installs a distribution into a virtual environment of its own.
func (i *Installer) installPip(ctx context.Context, spec string) (Result, error) {
	venv := path.Join(i.folder, "venv")
	if _, err := i.run(ctx, i.folder, true, makeVenvCommand(venv)...); err != nil {
		return Result{}, err
	}
	if i.request.SHA256 != "" {
		if err := i.installHashed(ctx, venv); err != nil {
			return Result{}, err
		}
	}
	if err := i.pip(ctx, i.folder, venv, ofPyPI(spec)...); err != nil {
		return Result{}, err
	}
	result := Result{Cwd: i.folder, Path: []string{path.Join(venv, "bin")}}
	out, err := i.run(ctx, i.folder, false, path.Join(venv, "bin/python"), "-c", pipFindScript, spec)
	if err != nil {
		return Result{}, err
	}
	return result, readPrograms(out, &result)
}

// pipFindScript is a script that prints the programs of the distribution that a specification names.
const pipFindScript = `
import json, re, sys
from importlib import metadata
spec = sys.argv[1]
def plain(n): return re.sub(r"[-_.]+", "-", n or "").lower()
name = plain(re.match(r"[A-Za-z0-9._-]*", spec.split("[")[0]).group())
found = None
for d in metadata.distributions():
    if plain(d.metadata["Name"]) == name: found = d
if found is None:
    for d in metadata.distributions():
        url = d.read_text("direct_url.json")
        if url and (spec in url or "file://" in url): found = d
bins = sorted({e.name for e in found.entry_points if e.group == "console_scripts"}) if found else []
print(json.dumps({"bins": bins, "version": found.version if found else ""}))
`

// installGit clones a repository, and installs what it contains.
func (i *Installer) installGit(ctx context.Context) (Result, error) {
	u, err := url.Parse(i.request.Spec)
	if err != nil {
		return Result{}, err
	}
	ref := u.Fragment
	u.Fragment = ""
	repo, newRepo := path.Join(i.folder, "repo"), path.Join(i.folder, ".repo-new")
	notRepo, err := i.run(ctx, i.folder, false, "sh", "-c", `rm -rf .repo-new; test -e repo && ! test -d repo/.git && echo other; true`)
	if err != nil {
		return Result{}, err
	}
	if strings.TrimSpace(notRepo) != "" {
		return Result{}, fault.Argument("workdir",
			"%s is there, and is not a repository: choose another workdir", repo)
	}
	// An existing clone is replaced only when the new one is complete.
	if err := i.cloneRef(ctx, u.String(), ref, newRepo); err != nil {
		return Result{}, err
	}
	if _, err := i.run(ctx, i.folder, false, "sh", "-c", `rm -rf repo && mv .repo-new repo`); err != nil {
		return Result{}, err
	}
	version, err := i.run(ctx, repo, false, "git", "rev-parse", "--short", "HEAD")
	if err != nil {
		return Result{}, err
	}
	out, err := i.run(ctx, repo, false, "sh", "-c", `for f in package.json pyproject.toml setup.py requirements.txt; do test -f "$f" && echo "$f"; done; true`)
	if err != nil {
		return Result{}, err
	}
	result := Result{Cwd: repo}
	switch files := " " + strings.Join(strings.Fields(out), " ") + " "; {
	case strings.Contains(files, " package.json "):
		result, err = i.installNodeRepo(ctx, repo)
	case strings.Contains(files, " pyproject.toml ") || strings.Contains(files, " setup.py "):
		result, err = i.installPip(ctx, repo)
		result.Cwd = repo
	case strings.Contains(files, " requirements.txt "):
		result, err = i.installRequirements(ctx, repo)
	}
	result.Version = strings.TrimSpace(spec.SafeText(version, 60))
	return result, err
}

// cloneRef clones a repository; only the wanted branch or tag, if that works.
func (i *Installer) cloneRef(ctx context.Context, from, ref, repo string) error {
	if _, err := i.run(ctx, i.folder, true, cloneCommand(from, ref, repo)...); err == nil || ref == "" {
		return err
	}
	// The ref may be a commit, which --branch does not accept.
	if _, err := i.run(ctx, i.folder, true, "git", "clone", "--", from, repo); err != nil {
		return err
	}
	_, err := i.run(ctx, repo, true, "git", "checkout", "--detach", ref)
	return err
}

func (i *Installer) installNodeRepo(ctx context.Context, repo string) (Result, error) {
	result := Result{Cwd: repo, Path: []string{path.Join(repo, ".sandlot-bin"), path.Join(repo, "node_modules/.bin")}}
	if _, err := i.run(ctx, repo, true, "npm", "install", "--no-audit", "--no-fund", "--loglevel=http"); err != nil {
		return result, err
	}
	if _, err := i.run(ctx, repo, true, "npm", "run", "build", "--if-present"); err != nil {
		return result, err
	}
	out, err := i.run(ctx, repo, false, "node", "-e", gitNodeFindScript)
	if err != nil {
		return result, err
	}
	return result, readPrograms(out, &result)
}

// gitNodeFindScript is a script that makes a folder with the repository's programs, so that they
// can be started by name, and prints them.
const gitNodeFindScript = `
const fs = require('fs'), path = require('path')
const p = JSON.parse(fs.readFileSync('package.json'))
const bin = typeof p.bin === 'string' ? {[(p.name || 'server').split('/').pop()]: p.bin} : p.bin || {}
fs.rmSync('.sandlot-bin', {recursive: true, force: true})
fs.mkdirSync('.sandlot-bin')
for (const [name, file] of Object.entries(bin)) {
  const to = path.resolve(file), from = path.join('.sandlot-bin', path.basename(name))
  const first = fs.readFileSync(to, 'utf8').split('\n')[0]
  if (first.startsWith('#!')) { fs.chmodSync(to, 0o755); fs.symlinkSync(to, from) }
  else fs.writeFileSync(from, '#!/bin/sh\nexec node "' + to + '" "$@"\n', {mode: 0o755})
}
console.log(JSON.stringify({bins: Object.keys(bin).map(n => path.basename(n)), version: p.version}))
`

func (i *Installer) installRequirements(ctx context.Context, repo string) (Result, error) {
	venv := path.Join(i.folder, "venv")
	if _, err := i.run(ctx, i.folder, true, makeVenvCommand(venv)...); err != nil {
		return Result{}, err
	}
	err := i.pip(ctx, repo, venv, "-r", "requirements.txt")
	return Result{Cwd: repo, Path: []string{path.Join(venv, "bin")}}, err
}
