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
