package install

import (
	"context"
	"encoding/json"
	"net/url"
	"path"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Install runs the commands that install what the request names.
func (i *Installer) Install(ctx context.Context) (Result, error) {
	if _, err := i.run(ctx, "", false, "mkdir", "-p", i.folder); err != nil {
		return Result{}, err
	}
	switch i.request.Type {
	case "npm":
		return i.npm(ctx, i.request.Spec)
	case "pip":
		return i.pip(ctx, i.request.Spec)
	}
	return i.git(ctx)
}

// The commands that install, as far as they are known before the installation.

func npmInstall(folder, spec string) []string {
	return []string{"npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=http", "--", spec}
}

// makeVenv returns the command that makes a virtual environment. It has no pip, which is
// much faster.
func makeVenv(venv string) []string {
	return []string{"python3", "-m", "venv", "--without-pip", venv}
}

func pipInstall(venv, spec string) []string {
	return []string{"python3", "-m", "pip", "--python", path.Join(venv, "bin/python"), "install", "--no-compile",
		"--upgrade", "--", spec}
}

func clone(from, ref, repo string) []string {
	if ref == "" {
		return []string{"git", "clone", "--depth", "1", "--", from, repo}
	}
	return []string{"git", "clone", "--depth", "1", "--branch", ref, "--", from, repo}
}

// npm installs a package of npm, and finds its programs.
func (i *Installer) npm(ctx context.Context, spec string) (Result, error) {
	if _, err := i.run(ctx, i.folder, true, npmInstall(i.folder, spec)...); err != nil {
		return Result{}, err
	}
	p := Result{Cwd: i.folder, Path: []string{path.Join(i.folder, "node_modules/.bin")}}
	out, err := i.run(ctx, i.folder, false, "node", "-e", npmFind, spec)
	if err != nil {
		return Result{}, err
	}
	return p, read(out, &p)
}

// npmFind is a script that prints the programs of the package that a specification names
// or, if the specification has no name, of the package that was installed last.
const npmFind = `
const fs = require('fs'), path = require('path'), spec = process.argv[1]
const own = JSON.parse(fs.readFileSync('package.json')).dependencies || {}
const base = spec.startsWith('@') ? '@' + spec.slice(1).split('@')[0] : spec.split('@')[0]
let name = own[base] !== undefined ? base : Object.keys(own).find(n => own[n].includes(spec)) || Object.keys(own).pop()
const p = JSON.parse(fs.readFileSync(path.join('node_modules', name, 'package.json')))
const bins = typeof p.bin === 'string' ? [p.name.split('/').pop()] : Object.keys(p.bin || {})
console.log(JSON.stringify({bins, version: p.version}))
`

// read reads the output of one of the scripts in this file. Hostile code may have changed it.
func read(out string, p *Result) error {
	var said struct {
		Bins    []string
		Version string
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &said); err != nil {
		return fault.New(fault.CommandExecution,
			"it could not be seen what was installed in %s; say with start how its server starts", p.Cwd)
	}
	for _, b := range said.Bins[:min(len(said.Bins), 100)] {
		if spec.Plain(b) && !strings.Contains(b, "/") {
			p.Bins = append(p.Bins, b)
		}
	}
	p.Version = spec.Text(said.Version, 60)
	return nil
}

// pip installs a distribution into a virtual environment of its own.
func (i *Installer) pip(ctx context.Context, spec string) (Result, error) {
	venv := path.Join(i.folder, "venv")
	if _, err := i.run(ctx, i.folder, true, makeVenv(venv)...); err != nil {
		return Result{}, err
	}
	// The environment has no pip: the one outside of it installs into it.
	if _, err := i.run(ctx, i.folder, true, pipInstall(venv, spec)...); err != nil {
		return Result{}, err
	}
	p := Result{Cwd: i.folder, Path: []string{path.Join(venv, "bin")}}
	out, err := i.run(ctx, i.folder, false, path.Join(venv, "bin/python"), "-c", pipFind, spec)
	if err != nil {
		return Result{}, err
	}
	return p, read(out, &p)
}

// pipFind is a script that prints the programs of the distribution that a specification names.
const pipFind = `
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

// git clones a repository, and installs what it contains.
func (i *Installer) git(ctx context.Context) (Result, error) {
	u, err := url.Parse(i.request.Spec)
	if err != nil {
		return Result{}, err
	}
	ref := u.Fragment
	u.Fragment = ""
	repo, next := path.Join(i.folder, "repo"), path.Join(i.folder, ".repo-new")
	other, err := i.run(ctx, i.folder, false, "sh", "-c", `rm -rf .repo-new; test -e repo && ! test -d repo/.git && echo other; true`)
	if err != nil {
		return Result{}, err
	}
	if strings.TrimSpace(other) != "" {
		return Result{}, fault.New(fault.InvalidParameters,
			"%s is there, and is no repository: choose another workdir", repo).With("argument", "workdir")
	}
	// An existing clone is replaced only when the new one is complete.
	if err := i.fetch(ctx, u.String(), ref, next); err != nil {
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
	p := Result{Cwd: repo}
	switch files := " " + strings.Join(strings.Fields(out), " ") + " "; {
	case strings.Contains(files, " package.json "):
		p, err = i.gitNode(ctx, repo)
	case strings.Contains(files, " pyproject.toml ") || strings.Contains(files, " setup.py "):
		p, err = i.pip(ctx, repo)
		p.Cwd = repo
	case strings.Contains(files, " requirements.txt "):
		p, err = i.gitRequirements(ctx, repo)
	}
	p.Version = strings.TrimSpace(spec.Text(version, 60))
	return p, err
}

// fetch clones a repository; only the wanted branch or tag, if that works.
func (i *Installer) fetch(ctx context.Context, from, ref, repo string) error {
	if _, err := i.run(ctx, i.folder, true, clone(from, ref, repo)...); err == nil || ref == "" {
		return err
	}
	// The ref may be a commit, which --branch does not accept.
	if _, err := i.run(ctx, i.folder, true, "git", "clone", "--", from, repo); err != nil {
		return err
	}
	_, err := i.run(ctx, repo, true, "git", "checkout", "--detach", ref)
	return err
}

func (i *Installer) gitNode(ctx context.Context, repo string) (Result, error) {
	p := Result{Cwd: repo, Path: []string{path.Join(repo, ".sandlot-bin"), path.Join(repo, "node_modules/.bin")}}
	if _, err := i.run(ctx, repo, true, "npm", "install", "--no-audit", "--no-fund", "--loglevel=http"); err != nil {
		return p, err
	}
	if _, err := i.run(ctx, repo, true, "npm", "run", "build", "--if-present"); err != nil {
		return p, err
	}
	out, err := i.run(ctx, repo, false, "node", "-e", gitNodeFind)
	if err != nil {
		return p, err
	}
	return p, read(out, &p)
}

// gitNodeFind is a script that makes a folder with the repository's programs, so that they
// can be started by name, and prints them.
const gitNodeFind = `
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

func (i *Installer) gitRequirements(ctx context.Context, repo string) (Result, error) {
	venv := path.Join(i.folder, "venv")
	if _, err := i.run(ctx, i.folder, true, makeVenv(venv)...); err != nil {
		return Result{}, err
	}
	_, err := i.run(ctx, repo, true, "python3", "-m", "pip", "--python", path.Join(venv, "bin/python"), "install",
		"--no-compile", "-r", "requirements.txt")
	return Result{Cwd: repo, Path: []string{path.Join(venv, "bin")}}, err
}
