package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// TestCoolifyPaths: Compose finds the source and the seccomp profile from the base directory that the guide names,
// and not from the root of the repository.
func TestCoolifyPaths(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		base, file string
		right      bool
	}{{"deploy", "deploy/compose.yaml", true}, {".", "deploy/compose.yaml", false}} {
		cmd := exec.Command(compose(t), "--project-directory", at.base, "-f", at.file, "config", "--format", "json")
		cmd.Dir = ".."
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var found struct {
			Services map[string]struct {
				Build struct{ Context, Dockerfile string }
			}
		}
		if err := json.Unmarshal(out, &found); err != nil {
			t.Fatal(err)
		}
		build := found.Services["sandlot"].Build
		_, err = os.Stat(filepath.Join(build.Context, build.Dockerfile))
		if (err == nil) != at.right {
			t.Errorf("base directory %s: %+v, %v", at.base, build, err)
		}
		if _, err := os.Stat(filepath.Join("..", at.base, "seccomp.json")); (err == nil) != at.right {
			t.Errorf("base directory %s: %v", at.base, err)
		}
	}
}
