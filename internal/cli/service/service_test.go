package service

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/autostart"
	"sandlot/internal/config"
)

// TestFileTail: the last lines of a log, however large it is.
func TestFileTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, tt := range []struct {
		text  string
		lines int
		want  string
	}{
		{"", 3, ""}, {"a\n", 3, "a\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 1, "b\n"},
		{"\n\n\n", 2, "\n\n"}, {strings.Repeat("x", 3<<20) + "\nend\n", 1, "end\n"},
		{strings.Repeat("x", maxTail+5), 9, strings.Repeat("x", maxTail)},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, size, err := fileTail(path, tt.lines); err != nil || string(text) != tt.want ||
			size != int64(len(tt.text)) {
			t.Errorf("%.20q, %d: %.20q, %d, %v", tt.text, tt.lines, text, size, err)
		}
	}
}

// safeBuffer is a buffer that two goroutines may use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestFollow: what is written to a log is shown, also when the log begins again in a new file.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var out safeBuffer
	p := &commands{Program: Program{Out: &out}}
	if err := p.showFile(t.Context(), path, 5, false); err == nil || !strings.Contains(err.Error(), "no log yet") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.showFile(ctx, path, 5, true) }()
	shown := ""
	for i, step := range []string{"first, which is longer\n", "second\n", "in a new file\n"} {
		if i == 2 {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(step); err != nil || f.Close() != nil {
			t.Fatal(err)
		}
		shown += step
		for end := time.Now().Add(20 * time.Second); out.String() != shown; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q, want %q", out.String(), shown)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDescribe: the service has the flags, the settings file, the state folder and the log of its system, and says
// which variables it does not have.
func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	for _, name := range append([]string{"SANDLOT_CONFIG", "SANDLOT_STATE_DIR", "XDG_STATE_HOME", "HTTPS_PROXY"},
		dockerVariables...) {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", "/usr/bin:relative::/bin:/usr/bin")
	t.Setenv("SANDLOT_MAX_SESSIONS", "7")
	t.Setenv("DOCKER_HOST", "unix:///d.sock")
	t.Setenv("HTTPS_PROXY", "http://u:secret@proxy.example.com")
	settings := map[string]string{"port": "port", "enable-cors": "cors.enabled"}
	for _, system := range []string{"linux", "darwin"} {
		var errs bytes.Buffer
		p := &commands{Program: Program{Err: &errs, Settings: settings,
			Load: func(flags map[string]string) (*config.Config, error) {
				flags["state_dir"] = filepath.Join(dir, "a b")
				return config.Load(config.Source{File: filepath.Join(dir, "x") + "/", Env: config.Environ(),
					Flags: flags})
			}}}
		s, err := autostart.New(autostart.Machine{System: system, Account: autostart.Account{ID: "1", Home: dir},
			Getenv: func(string) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		server, cfg, err := p.describe(s, map[string]string{"port": "9000", "cors.enabled": "true"})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"serve", "--enable-cors=true", "--port=9000", "--config=" + dir + "/x/",
			"--state-dir=" + dir + "/a b"}
		if file := s.LogFile(); file != "" {
			want = append(want, "--log-file="+file)
		}
		if !slices.Equal(server.Args, want) || !filepath.IsAbs(server.Program) {
			t.Errorf("%s: %+v", system, server)
		}
		if cfg.Server.Port != 9000 || !cfg.Server.CORS || cfg.Server.StateDir != dir+"/a b" ||
			cfg.Sessions.MaxSessions == 7 {
			t.Errorf("%s: %+v", system, cfg.Server)
		}
		if server.Variables["PATH"] != "/usr/bin:/bin" || server.Variables["DOCKER_HOST"] != "unix:///d.sock" {
			t.Errorf("%s: %v", system, server.Variables)
		}
		if strings.Contains(fmt.Sprint(server), "secret") || !strings.Contains(errs.String(), "SANDLOT_MAX_SESSIONS") ||
			!strings.Contains(errs.String(), "HTTPS_PROXY") {
			t.Errorf("%s: %s", system, errs.String())
		}
	}
}
