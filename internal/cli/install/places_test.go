package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/clientconfig"
	"sandlot/internal/config"
	"sandlot/internal/wsl"
)

// command runs `sandlot install` as on a machine with that system, on which no server runs.
func command(t *testing.T, system string, args ...string) (out string) {
	t.Helper()
	var both bytes.Buffer
	p := &program{Program{Out: &both, Err: &both, Server: func() string { return "" },
		IsJSON:   func() bool { return false },
		Load:     func(map[string]string) (*config.Config, error) { return config.Default(), nil },
		Client:   func() (*client.Client, error) { return nil, errors.New("no server runs") },
		ErrorLog: func() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) },
		Usage:    func(err error) error { return err }}, system}
	c := p.command(func(c *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
		c.RunE = run
		return c
	})
	c.SetArgs(args)
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, both.String())
	}
	return both.String()
}

// entry returns the program, and its arguments, of Sandlot's entry in the file of a client.
func entry(t *testing.T, id, file string) []string {
	t.Helper()
	k, err := clientconfig.Find(id)
	text, readErr := os.ReadFile(file)
	if err = errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	i, err := k.Installed(text, "sandlot")
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, text)
	}
	return append([]string{i.Program}, i.Args...)
}

// own makes a home folder of the test, with no settings of this machine's clients.
func own(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "CRUSH_GLOBAL_CONFIG",
		"WSL_DISTRO_NAME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("USER", "me")
	t.Setenv("USERPROFILE", home)
	t.Setenv("APPDATA", filepath.Join(home, "Roaming"))
	t.Setenv("LOCALAPPDATA", filepath.Join(home, "Local"))
	return home
}

// places are where clients have their files, below the user's folder: on a Mac, and on Windows.
var places = map[string][2]string{
	"claude-desktop": {"Library/Application Support/Claude/claude_desktop_config.json",
		`/Roaming\Claude\claude_desktop_config.json`},
	"claude-code": {".claude.json", `\.claude.json`},
	"cursor":      {".cursor/mcp.json", `\.cursor\mcp.json`},
	"vscode":      {"Library/Application Support/Code/User/mcp.json", `/Roaming\Code\User\mcp.json`},
	"crush":       {".config/crush/crush.json", `\.config\crush\crush.json`},
	"kiro":        {".kiro/settings/mcp.json", `\.kiro\settings\mcp.json`},
	"windsurf":    {".codeium/windsurf/mcp_config.json", `\.codeium\windsurf\mcp_config.json`},
	"gemini":      {".gemini/settings.json", `\.gemini\settings.json`},
	"codex":       {".codex/config.toml", `\.codex\config.toml`},
	"opencode":    {".config/opencode/opencode.json", `\.config\opencode\opencode.json`},
	"copilot":     {".copilot/mcp-config.json", `\.copilot\mcp-config.json`},
	"cline": {".cline/data/settings/cline_mcp_settings.json",
		`\.cline\data\settings\cline_mcp_settings.json`},
	"qwen":      {".qwen/settings.json", `\.qwen\settings.json`},
	"continue":  {".continue/config.yaml", `\.continue\config.yaml`},
	"zed":       {".config/zed/settings.json", `/Roaming\Zed\settings.json`},
	"goose":     {".config/goose/config.yaml", `/Roaming\Block\goose\config\config.yaml`},
	"lm-studio": {".lmstudio/mcp.json", `\.lmstudio\mcp.json`},
	"roo": {"Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
		`/Roaming\Code\User\globalStorage\rooveterinaryinc.roo-cline\settings\mcp_settings.json`},
	"jetbrains": {".junie/mcp/mcp.json", `\.junie\mcp\mcp.json`},
}

// TestEveryPlace installs into every client of a Mac and of Windows: its file, in its place, has the program, and the
// list says so. What Windows would take for folders is a part of the file's name here.
func TestEveryPlace(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(places)); !slices.Equal(got, slices.Sorted(slices.Values(clientconfig.IDs()))) {
		t.Fatalf("the clients are %q", got)
	}
	for id, place := range places {
		t.Run(id, func(t *testing.T) {
			home := own(t)
			for system, file := range map[string]string{"darwin": filepath.Join(home, place[0]),
				"windows": home + place[1]} {
				out := command(t, system, id, "--yes")
				if !strings.Contains(out, file+" is written") {
					t.Errorf("%s: %s is not written: %s", system, file, out)
				}
				if got := entry(t, id, file); !slices.Equal(got, []string{self, "stdio"}) {
					t.Errorf("%s: %q", system, got)
				}
				if out := command(t, system, "--list"); !strings.Contains(out, "installed  "+file+"\n") ||
					strings.Count(out, "installed") != 1 {
					t.Errorf("%s: %s", system, out)
				}
				if out := command(t, system, id, "--yes"); !strings.Contains(out, "nothing to do") {
					t.Errorf("%s, again: %s", system, out)
				}
			}
		})
	}
}

// TestEveryPlaceFromWSL: a distribution of WSL installs into every client of Windows, also under sudo, which drops the
// variable with the distribution's name.
func TestEveryPlaceFromWSL(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for id, place := range places {
		t.Run(id, func(t *testing.T) {
			home := own(t)
			root := windows(t, home)
			settings := filepath.Join(home, "wsl.conf")
			wslpath := "#!/bin/sh\n" + `printf '%s\n' '\\wsl.localhost\Ubuntu-24.04\'` + "\n"
			err := errors.Join(os.WriteFile(settings, []byte("[automount]\nroot = "+root+"\n"), 0o600),
				os.WriteFile(filepath.Join(home, "wslpath"), []byte(wslpath), 0o755))
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", home+":"+os.Getenv("PATH"))
			before := wslSettings
			wslSettings = settings
			defer func() { wslSettings = before }()
			command(t, "linux", id, "--windows", "--yes")
			file := strings.NewReplacer(`\`, "/", "Roaming", "AppData/Roaming", "Local", "AppData/Local").Replace(place[1])
			got := entry(t, id, filepath.Join(root+"c/Users/me", file))
			want := append([]string{wsl.Program}, wsl.Arguments("Ubuntu-24.04", "me", self, "stdio")...)
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			k, err := clientconfig.Find(id)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := windowsFile(context.Background(), k, root); err != nil ||
				got != filepath.Join(root+"c/Users/me", file) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}
