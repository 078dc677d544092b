package oci

import (
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
)

// architectures are those that sandboxes can have.
var architectures = []string{"amd64", "arm64"}

// parsePlatform reads the platform of Options.
func parsePlatform(text string) (v1.Platform, error) {
	if text == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	words := strings.Split(text, "/")
	if len(words) < 2 || len(words) > 3 || words[0] != "linux" || !slices.Contains(architectures, words[1]) {
		return v1.Platform{}, fault.New(fault.InvalidParameters, "the platform %q is not supported: it is one of "+
			"linux/%s",
			text, strings.Join(architectures, ", linux/"))
	}
	p := v1.Platform{OS: words[0], Architecture: words[1]}
	if len(words) == 3 {
		p.Variant = words[2]
	}
	return p, nil
}

// platformText returns a platform for people.
func platformText(p v1.Platform) string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	return printable(text)
}

// fits returns how well a platform that an index offers fits the wanted one: 0 is not at all.
func fits(want v1.Platform, have *v1.Platform) int {
	if have == nil || have.OS != want.OS || have.Architecture != want.Architecture {
		return 0
	}
	switch {
	case have.Variant == want.Variant:
		return 3
	case want.Architecture == "arm64" && have.Variant == "v8" && want.Variant == "",
		want.Architecture == "arm64" && have.Variant == "" && want.Variant == "v8":
		return 2
	case want.Variant == "":
		return 1
	}
	return 0
}

// choose returns the entry of an index for a platform.
func choose(offered []v1.Descriptor, want v1.Platform, what string) (v1.Descriptor, error) {
	best, at := 0, -1
	var names []string
	for i, d := range offered {
		if fit := fits(want, d.Platform); fit > best {
			best, at = fit, i
		}
		if d.Platform != nil && d.Platform.OS != "unknown" { // what is unknown is no image, but says things about one
			if n := platformText(*d.Platform); !slices.Contains(names, n) && len(names) < 20 {
				names = append(names, n)
			}
		}
	}
	if at >= 0 {
		return offered[at], nil
	}
	if len(names) == 0 {
		return v1.Descriptor{}, fault.New(fault.NotFound, "%s has no image for %s, and names no other platform", what,
			platformText(want))
	}
	return v1.Descriptor{}, fault.New(fault.NotFound, "%s has no image for %s; it has %s", what, platformText(want),
		strings.Join(names, ", "))
}
