package image

import (
	"strings"
	"testing"

	"sandlot/internal/oci"
)

func TestLayerLine(t *testing.T) {
	l := oci.Progress{Layer: "sha256:" + strings.Repeat("ab", 32), Stage: oci.Loading, Done: 1_500_000,
		Total: 3_000_000}
	want := "abababababab  loading  [===============               ]  1.5 MB of 3.0 MB"
	if got := layerLine(l); got != want {
		t.Errorf("the line is %q", got)
	}
	l.Stage = oci.Present
	if got := layerLine(l); got != "abababababab  present  3.0 MB" {
		t.Errorf("the line is %q", got)
	}
	if got := layerName("docker-daemon:a\x1b[2J"); got != "docker-daemon:a[2J" {
		t.Errorf("the name is %q", got)
	}
}
