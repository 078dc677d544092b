// Package dpkg owns what sandboxes get of the package database of a machine with Debian or Ubuntu: which of its packages
// are the distribution's own, and so nobody's secret, and the files of these.
package dpkg

import (
	"bytes"
	"crypto/md5" // the sums are dpkg's
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Dir is where the machine's database is.
const Dir = "/var/lib/dpkg"

// maxStatus bounds the file of a database that says what is installed, in bytes: 20,000 packages have some 25 MB.
const maxStatus = 64 << 20

// Package is an installed package of a machine.
type Package struct {
	Name, Arch string
	maintained string            // who maintains it
	needs      []string          // names of packages
	provides   []string          // names
	conffiles  map[string]string // path of a file in /etc → MD5 sum of what the package brought
	stanza     string            // its entry in the database
}

// Read returns the installed packages of a database.
func Read(dir string) ([]Package, error) {
	f, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxStatus+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxStatus {
		return nil, fmt.Errorf("%s has more than %d MB", f.Name(), maxStatus>>20)
	}
	var all []Package
	for stanza := range strings.SplitSeq(string(text), "\n\n") {
		if p, ok := parse(stanza); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// parse parses an entry. ok says whether the package is installed.
func parse(stanza string) (p Package, ok bool) {
	p = Package{conffiles: map[string]string{}, stanza: strings.Trim(stanza, "\n") + "\n"}
	field := ""
	for line := range strings.Lines(stanza) {
		line = strings.TrimRight(line, "\n")
		value := line
		if !strings.HasPrefix(line, " ") {
			field, value, _ = strings.Cut(line, ":")
		}
		p.set(field, strings.TrimSpace(value), &ok)
	}
	return p, ok && validName.MatchString(p.Name)
}

// validName matches names of packages (Debian's policy, 5.6.1): they are names of files here.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*$`)

func (p *Package) set(field, value string, installed *bool) {
	switch field {
	case "Package":
		p.Name = value
	case "Architecture":
		p.Arch = value
	case "Status":
		*installed = strings.HasSuffix(value, " installed")
	case "Maintainer": // that of a rebuild is who rebuilt it
		p.maintained = value
	case "Depends", "Pre-Depends":
		p.needs = append(p.needs, names(value)...)
	case "Provides":
		p.provides = names(value)
	case "Conffiles":
		if words := strings.Fields(value); len(words) == 2 { // the third one would be "obsolete"
			p.conffiles[words[0]] = words[1]
		}
	}
}

// names returns the names in a list of dependencies: "a (>= 1), b | c:any".
func names(list string) (all []string) {
	for _, one := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '|' }) {
		name, _, _ := strings.Cut(strings.TrimSpace(one), " ")
		name, _, _ = strings.Cut(name, ":")
		all = append(all, name)
	}
	return all
}

// IsDistributions reports whether a package is the distribution's, to judge by who maintains it.
func (p Package) IsDistributions() bool {
	for _, domain := range []string{"debian.org>", "ubuntu.com>", "canonical.com>"} {
		if before, ok := strings.CutSuffix(p.maintained, domain); ok && (strings.HasSuffix(before, "@") ||
			strings.HasSuffix(before, ".")) {
			return true
		}
	}
	return false
}

// Known returns those of the packages that the archive has, by their names, or that are the distribution's and are needed
// by one that it has, as is one that was removed from the archive since.
func Known(all []Package, public map[string]bool) []Package {
	byName := map[string][]int{}
	for n, p := range all {
		for _, name := range append(slices.Clone(p.provides), p.Name) {
			byName[name] = append(byName[name], n)
		}
	}
	known := map[int]bool{}
	var add func(n int)
	add = func(n int) {
		if known[n] {
			return
		}
		known[n] = true
		for _, name := range all[n].needs {
			for _, m := range byName[name] {
				if public[all[m].Name] || all[m].IsDistributions() {
					add(m)
				}
			}
		}
	}
	for n, p := range all {
		if public[p.Name] {
			add(n)
		}
	}
	var list []Package
	for n, p := range all {
		if known[n] {
			list = append(list, p)
		}
	}
	return list
}

const (
	maxConffile  = 1 << 20 // bytes of a file of settings
	maxConffiles = 8 << 20 // bytes of all
)

// Conffiles returns the files of /etc that packages have brought and that are unchanged since, by their paths without a
// leading slash. They say nothing of the machine. Links on the way to one, and what not everybody may read, are left out.
func Conffiles(all []Package) map[string][]byte {
	files, total := map[string][]byte{}, 0
	for _, p := range all {
		for _, name := range slices.Sorted(maps.Keys(p.conffiles)) {
			sum := p.conffiles[name]
			if path.Clean(name) != name || !strings.HasPrefix(name, "/etc/") {
				continue
			}
			text, err := readPlain(name)
			if got := md5.Sum(text); err != nil || hex.EncodeToString(got[:]) != sum || total+len(text) > maxConffiles {
				continue
			}
			total += len(text)
			files[name[1:]] = text
		}
	}
	return files
}

// readPlain reads a file that everybody may read, without links on the way: the folders are the administrator's, who does
// not change them between two looks.
func readPlain(name string) ([]byte, error) {
	if real, err := filepath.EvalSymlinks(name); err != nil || real != name {
		return nil, fs.ErrPermission
	}
	if st, err := os.Lstat(name); err != nil || !st.Mode().IsRegular() || st.Mode()&0o004 == 0 || st.Size() > maxConffile {
		return nil, fs.ErrPermission
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConffile))
}

// Folders returns the folders below /etc and /var that packages of a database have, without a leading slash.
func Folders(dir string, packages []Package) (folders []string) {
	for _, p := range packages {
		for line := range strings.Lines(string(p.info(dir, "list"))) {
			name := strings.TrimSpace(line)
			if !strings.HasPrefix(name, "/etc/") && !strings.HasPrefix(name, "/var/") || path.Clean(name) != name {
				continue
			}
			if st, err := os.Lstat(name); err == nil && st.IsDir() {
				folders = append(folders, name[1:])
			}
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// info reads a file of the database about a package; nil: there is none.
func (p Package) info(dir, kind string) []byte {
	for _, name := range []string{p.Name, p.Name + ":" + p.Arch} {
		if text, err := os.ReadFile(filepath.Join(dir, "info", name+"."+kind)); err == nil {
			return text
		}
	}
	return nil
}

// Users returns the lines of a machine's list of users or groups whose names are in scripts (UserScripts): what other users
// a machine has is nobody's to know. master has those of every Debian, which come first.
func Users(list, master, scripts []byte) []byte {
	all, seen := bytes.TrimRight(master, "\n"), map[string]bool{}
	for line := range strings.Lines(string(master)) {
		name, _, _ := strings.Cut(line, ":")
		seen[name] = true
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 4 || seen[fields[0]] || !validName.MatchString(strings.TrimLeft(fields[0], "_")) {
			continue
		}
		if id, err := strconv.Atoi(fields[2]); err != nil || id <= 0 || id >= 1000 {
			continue
		}
		if !hasWord(scripts, fields[0], "_.-") {
			continue
		}
		fields[1] = "*"
		if len(fields) > 4 {
			fields[4] = "" // who somebody is
		}
		if len(fields) == 4 { // a group, of which who is in it may be somebody
			fields[3] = ""
		}
		all = append(append(all, '\n'), strings.Join(fields, ":")...)
	}
	return append(all, '\n')
}

// UserScripts returns the scripts of packages of a database that make users or groups when they are installed.
func UserScripts(dir string, packages []Package) []byte {
	var all []byte
	for _, p := range packages {
		script := p.info(dir, "postinst")
		if slices.ContainsFunc(userMakers, func(program string) bool { return hasWord(script, program, "_") }) {
			all = append(all, script...)
		}
	}
	return all
}

// userMakers are the programs that make users and groups.
var userMakers = []string{"adduser", "useradd", "addgroup", "groupadd", "sysusers"}

// hasWord reports whether a word stands in a text with neither a letter, a digit nor one of more beside it. The scripts of a
// machine are megabytes, in which a regular expression would look for as long as the server takes to start.
func hasWord(text []byte, word, more string) bool {
	inWord := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte(more, c) >= 0
	}
	for from := 0; ; {
		n := bytes.Index(text[from:], []byte(word))
		if n < 0 {
			return false
		}
		begin, end := from+n, from+n+len(word)
		if (begin == 0 || !inWord(text[begin-1])) && (end == len(text) || !inWord(text[end])) {
			return true
		}
		from = begin + 1
	}
}

// Write makes a database in a folder that does not exist, of packages of the database from: sandboxes see that these are
// installed.
func Write(dir, from string, packages []Package) error {
	err := os.MkdirAll(filepath.Join(dir, "info"), 0o755)
	for _, d := range []string{"updates", "triggers", "parts", "alternatives"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	if err != nil {
		return err
	}
	var status strings.Builder
	infos, err := infoFiles(from)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, p := range packages {
		status.WriteString(p.stanza + "\n")
		kept[p.Name] = true
		for _, key := range []string{p.Name, p.Name + ":" + p.Arch} {
			for _, name := range infos[key] {
				if path.Ext(name) != ".list" && !p.IsDistributions() {
					continue // a package of that name, which somebody else has made
				}
				if err := copyFile(filepath.Join(from, "info", name), filepath.Join(dir, "info", name)); err != nil {
					return err
				}
			}
		}
	}
	for _, name := range []string{"available", "diversions", "statoverride"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	// What diverts files is a package's, or of the machine's administrator, whose paths are left out.
	if text, readErr := os.ReadFile(filepath.Join(from, "diversions")); readErr == nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "diversions"), diversionsOf(text, packages), 0o644))
	}
	err = errors.Join(err, writeFiltered(filepath.Join(from, "alternatives"), filepath.Join(dir, "alternatives"), isAlternative),
		writeFiltered(filepath.Join(from, "triggers"), filepath.Join(dir, "triggers"), func(text []byte) []byte {
			return triggersOf(text, kept)
		}))
	for _, name := range []string{"info/format", "arch"} {
		if copyErr := copyFile(filepath.Join(from, name), filepath.Join(dir, name)); !errors.Is(copyErr, fs.ErrNotExist) {
			err = errors.Join(err, copyErr)
		}
	}
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "status"), []byte(status.String()), 0o644))
}

// infoFiles returns the names of the files of each package in info: "name.list" or "name:arch.list".
func infoFiles(from string) (map[string][]string, error) {
	entries, err := os.ReadDir(filepath.Join(from, "info"))
	files := map[string][]string{}
	for _, e := range entries {
		if ext := path.Ext(e.Name()); e.Type().IsRegular() && ext != "" {
			key := strings.TrimSuffix(e.Name(), ext)
			files[key] = append(files[key], e.Name())
		}
	}
	return files, err
}

// diversionsOf returns the entries, of three lines each, whose third line names one of the packages.
func diversionsOf(text []byte, packages []Package) []byte {
	var kept strings.Builder
	lines := slices.Collect(strings.Lines(string(text)))
	for entry := range slices.Chunk(lines, 3) {
		if len(entry) == 3 && slices.ContainsFunc(packages, func(p Package) bool { return p.Name == strings.TrimSpace(entry[2]) }) {
			kept.WriteString(strings.Join(entry, ""))
		}
	}
	return []byte(kept.String())
}

// writeFiltered writes what filter leaves of the files of a folder; nil: nothing.
func writeFiltered(from, to string, filter func([]byte) []byte) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		text, readErr := os.ReadFile(filepath.Join(from, e.Name()))
		if !e.Type().IsRegular() || readErr != nil {
			continue // such as a lock
		}
		if text = filter(text); text != nil {
			err = errors.Join(err, os.WriteFile(filepath.Join(to, e.Name()), text, 0o644))
		}
	}
	return err
}

// isAlternative returns a list of alternatives, if all of them are in folders that sandboxes have.
func isAlternative(text []byte) []byte {
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "/") {
			continue
		}
		if !slices.ContainsFunc([]string{"/usr/", "/bin/", "/sbin/", "/lib", "/etc/", "/var/"}, func(dir string) bool {
			return strings.HasPrefix(line, dir)
		}) {
			return nil
		}
	}
	return text
}

// triggersOf returns the lines of a list of triggers that name packages of a set.
func triggersOf(text []byte, kept map[string]bool) []byte {
	all := []byte{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		name, _, _ := strings.Cut(words[len(words)-1], "/") // /noawait
		name, _, _ = strings.Cut(name, ":")
		if kept[name] {
			all = append(all, line...)
		}
	}
	return all
}

// copyFile copies a file with its permissions. One that this process may not read, such as a lock, is left out.
func copyFile(from, to string) error {
	f, err := os.Open(from)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, st.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return errors.Join(err, out.Close())
}
