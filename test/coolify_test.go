package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// coolifyValue is what Coolify 4.3 writes behind `NAME=` in the file .env for a value that its user enters.
func coolifyValue(value string, literal bool) string {
	value = strings.TrimSpace(value)
	switch {
	case json.Valid([]byte(value)) && (value[0] == '{' || value[0] == '['):
		return value
	case literal:
		return "'" + value + "'"
	}
	return strings.NewReplacer(`\`, `\\`, "\r", `\r`, "\t", `\t`, "\x00", `\0`, `"`, `\"`, `'`, `\'`).Replace(value)
}

// refused stands in the guide for a value with which no container starts.
const refused = "nothing: Compose refuses the file"

// rows returns the cells of the first table below a heading of the guide to deployment, without its header.
func rows(t *testing.T, heading string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/guide/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), heading+"\n")
	_, rest, below := strings.Cut(rest, "\n|---")
	if !found || !below {
		t.Fatalf("the guide has no table below %q", heading)
	}
	for line := range strings.Lines(rest[strings.IndexByte(rest, '\n')+1:]) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), " | ") {
			cells = append(cells, strings.Trim(strings.TrimSpace(cell), "`"))
		}
		all = append(all, cells)
	}
	return all
}

// coolified writes deploy/compose.yaml into a folder with an .env as Coolify has them, and returns the arguments
// with which Coolify starts Compose.
func coolified(t *testing.T, variables string) []string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../deploy/compose.yaml")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, ".env"), []byte(variables), 0o600),
			os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(strings.Replace(string(text),
				"    environment:\n", "    env_file: [.env]\n    environment:\n", 1)), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--project-name", "id", "--env-file", filepath.Join(dir, ".env"), "--project-directory", dir,
		"-f", filepath.Join(dir, "compose.yaml")}
}

// environment returns what Compose makes of variables for the container.
func environment(t *testing.T, variables string) (map[string]string, error) {
	t.Helper()
	cmd := exec.Command(compose(t), append(coolified(t, variables), "config", "--format", "json")...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, &errs)
	}
	var found struct {
		Services map[string]struct {
			Environment map[string]string `json:"environment"`
		} `json:"services"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	all := found.Services["sandlot"].Environment
	for name, value := range all { // Compose could read its output again
		all[name] = strings.ReplaceAll(value, "$$", "$")
	}
	return all, nil
}

// TestCoolifyValues: the guide's table of values is what Compose makes of what Coolify writes.
func TestCoolifyValues(t *testing.T) {
	t.Parallel()
	table := rows(t, "### Values with `$`, quotes, backslashes")
	if len(table) < 10 || !slices.ContainsFunc(table, func(r []string) bool { return r[0] == `pa$ss` }) {
		t.Fatalf("the guide's table: %q", table)
	}
	for _, row := range table {
		for column, literal := range []bool{false, true} {
			value, want := coolifyValue(row[0], literal), row[column+1]
			all, err := environment(t, "SERVICE_URL_SANDLOT=https://sandlot.example.com\nVALUE="+value+
				"\nSANDLOT_LOG_LEVEL=DEBUG\n")
			switch {
			case err != nil && want != refused:
				t.Errorf("%s: %v", value, err)
			case err == nil && (all["VALUE"] != want || all["SANDLOT_LOG_LEVEL"] != "DEBUG"):
				t.Errorf("%s: the container gets %q and not %q, of all %q", value, all["VALUE"], want, all)
			}
		}
	}
	for line, want := range map[string]string{
		"'two\nlines'": "two\nlines", // Coolify's Multiline
		`'pa$ss'`:      `pa$ss`,      // what the guide tells everybody else to write
		`"pa$$ss"`:     `pa$ss`,
		`pa$$ss`:       `pa$ss`,
	} {
		if all, err := environment(t, "VALUE="+line+"\n"); err != nil || all["VALUE"] != want {
			t.Errorf("%s: the container gets %q and not %q, %v", line, all["VALUE"], want, err)
		}
	}
}

// byCoolify builds the image and makes the container as Coolify does with the base directory that the guide names; with
// the one that it warns of, Compose finds neither the source nor the seccomp profile.
func (c *containers) byCoolify(bases string) {
	guide, err := os.ReadFile("../docs/guide/deploy.md")
	if err != nil {
		c.t.Fatal(err)
	}
	paths := regexp.MustCompile("base directory `(/[^`]*)` and compose file `(/[^`]*)`.* with `(/[^`]*)` and " +
		"`(/[^`]*)` Compose finds neither").FindStringSubmatch(string(guide))
	row := regexp.MustCompile("\n\\| `(unable to prepare context: )… (/deploy: no such file or directory)` \\| base " +
		"directory").FindStringSubmatch(string(guide))
	if paths == nil || row == nil {
		c.t.Fatal("the guide does not name the paths for Coolify, or what goes wrong without them")
	}
	dir := c.t.TempDir()
	err = errors.Join(os.WriteFile(filepath.Join(dir, ".env"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "override.yaml"), fmt.Appendf(nil, override, dir), 0o644))
	root, rootErr := filepath.Abs("..")
	if err = errors.Join(err, rootErr); err != nil {
		c.t.Fatal(err)
	}
	coolify := func(base, file string) string {
		return fmt.Sprintf("docker compose --project-name coolify --env-file %s/.env --project-directory %s -f %s "+
			"-f %[1]s/override.yaml ", dir, root+base, filepath.Join(root, base, file))
	}
	c.t.Cleanup(func() { c.try(coolify(paths[1], paths[2]) + "down --volumes") })
	wrong := coolify(paths[3], paths[4])
	if out, err := c.try(wrong + "build " + bases); err == nil || !strings.Contains(out, row[1]) ||
		!strings.Contains(out, row[2]) {
		c.t.Errorf("building from the base directory %s: %v, %s", paths[3], err, out)
	}
	if out, err := c.try(wrong + "create"); err == nil || !strings.Contains(out, "seccomp.json: no such file") {
		c.t.Errorf("a container from the base directory %s: %v, %s", paths[3], err, out)
	}
	right := coolify(paths[1], paths[2])
	c.run(right + "build " + bases)
	c.run(right + "create --no-build")
	profile, err := os.ReadFile("../deploy/seccomp.json")
	if err != nil {
		c.t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, profile); err != nil {
		c.t.Fatal(err)
	}
	var options []string
	err = json.Unmarshal([]byte(c.status("coolify-sandlot-1", "json .HostConfig.SecurityOpt")), &options)
	if err != nil || !slices.Contains(options, "seccomp="+compact.String()) {
		c.t.Errorf("the container has not the profile: %v, %.200q", err, options)
	}
}
