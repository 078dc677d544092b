package builtin

import (
	"strings"
	"testing"

	"sandlot/internal/dpkg"
	"sandlot/internal/image"
)

// TestAdviceToInstall: who cannot install by apt-get is told what to do, which depends on why.
func TestAdviceToInstall(t *testing.T) {
	archive := []image.Bind{{Source: "/a", Target: dpkg.Dir, Graft: true}}
	for name, c := range map[string]struct {
		template image.Template
		output   string
		want     string
	}{
		"the lists are to come": {image.Template{Name: "host", ArchiveComes: true}, "Read-only file system", "stop_session"},
		"there are none":        {image.Template{Name: "host"}, "Read-only file system", "`pip install`"},
		"the lists are there":   {image.Template{Name: "host", Binds: archive}, "Unable to locate package no-such", ""},
		"a machine's mount":     {image.Template{Name: "host", Binds: archive}, "touch: '/usr/x': Read-only file system", "`pip install`"},
		"an image":              {image.Template{Name: "py", Image: "debian:13"}, "Unable to locate package no-such", ""},
	} {
		got := adviceToInstall(&c.template, c.output)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAdviceToImport: who misses a package that the server was still installing is told so, and nobody else.
func TestAdviceToImport(t *testing.T) {
	coming := image.Template{Name: "host", PackagesCome: []string{"pandas", "scikit-learn", "pytest", "zod"}}
	for output, want := range map[string]string{
		"ModuleNotFoundError: No module named 'pandas'":                    "`pip install pandas`",
		"ModuleNotFoundError: No module named 'sklearn.cluster'":           "`pip install scikit-learn`",
		"/usr/bin/python3: No module named pytest":                         "`pip install pytest`",
		"Error: Cannot find module 'zod/v4'\nRequire stack:":               "`npm install zod`",
		"Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported": "`npm install zod`",
		"ModuleNotFoundError: No module named 'mine'":                      "",
		"Error: Cannot find module './zod'":                                "",
		"Error: Cannot find module '@scope/zod'":                           "",
		"pandas":                                                           "",
	} {
		got := adviceToImport(&coming, "", output)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
		if got := adviceToImport(&image.Template{Name: "host"}, output); got != "" {
			t.Errorf("%q, when all are there: %q", output, got)
		}
	}
}
