package pkgregistry

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestMain: other tests are about other package managers.
func TestMain(m *testing.M) {
	theMachine, officialArchives = aptMachine{}, nil
	os.Exit(m.Run())
}

// TestApt: of the machine's sources those of the distribution's own archive are taken, and no other is shown to anybody.
func TestApt(t *testing.T) {
	for name, tt := range map[string]struct {
		release, file, text string
		want                []AptSource
	}{
		"one line": {"debian/bookworm", "sources.list", "# deb http://old.example bookworm main\n" +
			"deb http://mirror.example/debian bookworm main contrib # all\n" +
			"deb-src http://mirror.example/debian bookworm main\n" +
			"deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] https://sec.example/debian-security bookworm-security main\n",
			[]AptSource{{"http://mirror.example/debian", []string{"bookworm"}, []string{"main", "contrib"}, "KEYS"},
				{"https://sec.example/debian-security", []string{"bookworm-security"}, []string{"main"}, "KEYS"}}},
		"stanzas": {"debian/bookworm", "sources.list.d/debian.sources", "Types: deb deb-src\n# a comment\nURIs: http://a.example/debian/\n" +
			" http://b.example/debian\nSuites: bookworm bookworm-updates\nComponents: main non-free-firmware\nSigned-By:\n /usr/share/keyrings/debian-archive-keyring.gpg\n\n" +
			"Types: deb\nEnabled: no\nURIs: http://c.example/debian\nSuites: bookworm\nComponents: main\n",
			[]AptSource{{"http://a.example/debian/", []string{"bookworm", "bookworm-updates"}, []string{"main", "non-free-firmware"}, "KEYS"},
				{"http://b.example/debian", []string{"bookworm", "bookworm-updates"}, []string{"main", "non-free-firmware"}, "KEYS"}}},
		"others": {"debian/bookworm", "sources.list.d/more.list", strings.Join([]string{
			"deb http://corp.example/debian bookworm-pgdg main",
			"deb [trusted=yes] http://corp.example/debian bookworm main",
			"deb [allow-insecure=yes] http://corp.example/debian bookworm main",
			"deb [signed-by=/etc/apt/keyrings/corp.gpg] http://corp.example/debian bookworm main",
			"deb http://corp.example/debian bookworm stable",
			"deb http://corp.example/debian trixie main",
			"deb file:/srv/debian bookworm main",
			"deb http://localhost:3142/debian bookworm main",
			"deb http://corp.example/debian ./"}, "\n"), nil},
		"a password": {"ubuntu/noble", "sources.list", "deb http://ann:secret@corp.example/ubuntu noble main universe\n",
			[]AptSource{{"http://corp.example/ubuntu", []string{"noble"}, []string{"main", "universe"}, "KEYS"}}},
		"a derivative": {"linuxmint/virginia", "sources.list", "deb http://mirror.example/ubuntu jammy main\n", nil},
		"no release":   {"debian/", "sources.list", "deb http://mirror.example/debian sid main\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m := aptMachine{filepath.Join(dir, "os-release"), filepath.Join(dir, "apt"), filepath.Join(dir, "keys")}
			id, codename, _ := strings.Cut(tt.release, "/")
			keys := ""
			for path, text := range map[string]string{m.osRelease: "ID=" + id + "\nVERSION_CODENAME=\"" + codename + "\"\n",
				filepath.Join(m.etc, tt.file): tt.text, filepath.Join(m.keyrings, id+"-archive-keyring.gpg"): "keys"} {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(path, m.keyrings) {
					keys = path
				}
			}
			b := &builder{hosts: map[Host]bool{}}
			b.setApt(m, nil)
			for i := range tt.want {
				tt.want[i].Keyring = keys
			}
			if !reflect.DeepEqual(b.Apt, tt.want) {
				t.Errorf("%+v, want %+v", b.Apt, tt.want)
			}
			for h := range b.hosts {
				if strings.Contains(h.Name, "corp") && len(tt.want) == 0 {
					t.Errorf("%v is allowed", h)
				}
			}
			if strings.Contains(strings.Join(b.Notes, " "), "secret") {
				t.Errorf("%q", b.Notes)
			}
		})
	}
}

// TestAptConfigured: the operator's mirror takes the place of the machine's; without one nothing of apt is allowed.
func TestAptConfigured(t *testing.T) {
	b := &builder{hosts: map[Host]bool{}}
	b.setApt(theMachine, map[string]string{})
	if len(b.Apt) != 0 || len(b.hosts) != 0 {
		t.Errorf("%v %v", b.Apt, b.hosts)
	}
	b.setApt(theMachine, map[string]string{"apt": "http://mirror.example/debian"})
	for _, s := range b.Apt {
		if s.URL != "http://mirror.example/debian" || len(s.Suites) != 2 {
			t.Errorf("%+v", s)
		}
	}
}
