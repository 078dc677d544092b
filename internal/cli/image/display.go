package image

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"sandlot/internal/fault"
	"sandlot/internal/oci"
)

// A transferDisplay shows the progress of a pull or import: on a terminal one line for each layer, which changes;
// elsewhere a line when a layer is there, and now and then one for the whole.
type transferDisplay struct {
	out      io.Writer
	terminal *os.File // nil: out is none
	order    []string
	layers   map[string]oci.Progress
	shown    int // lines on the terminal
	shownAt  time.Time
}

// How often the display changes: on a terminal, and elsewhere.
const (
	redrawInterval = 100 * time.Millisecond
	lineInterval   = 10 * time.Second
)

func newTransferDisplay(out io.Writer) *transferDisplay {
	d := &transferDisplay{out: out, layers: map[string]oci.Progress{}, shownAt: time.Now()}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		d.terminal = f
	}
	return d
}

// update takes the progress of one layer.
func (d *transferDisplay) update(now oci.Progress) {
	before, seen := d.layers[now.Layer]
	if !seen {
		d.order = append(d.order, now.Layer)
	}
	d.layers[now.Layer] = now
	if d.terminal != nil {
		if time.Since(d.shownAt) >= redrawInterval {
			d.redraw()
		}
		return
	}
	if ended := now.Stage == oci.Loaded || now.Stage == oci.Present; ended && before.Stage != now.Stage {
		fmt.Fprintf(d.out, "%s  %-7s  %s\n", layerName(now.Layer), now.Stage, byteCount(max(now.Done, now.Total)))
	} else if time.Since(d.shownAt) >= lineInterval {
		d.shownAt = time.Now()
		var done, total int64
		for _, l := range d.layers {
			done, total = done+l.Done, total+l.Total
		}
		fmt.Fprintf(d.out, "%s of %s\n", byteCount(done), byteCount(total))
	}
}

// redraw writes the lines of the layers over those that the terminal shows.
func (d *transferDisplay) redraw() {
	d.shownAt = time.Now()
	width, height, err := term.GetSize(int(d.terminal.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	order := d.order
	if most := max(height-2, 1); len(order) > most {
		order = order[len(order)-most:]
	}
	var b strings.Builder
	if d.shown > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", d.shown)
	}
	for _, name := range order {
		line := layerLine(d.layers[name])
		fmt.Fprintf(&b, "\x1b[2K%s\n", line[:min(len(line), max(width-1, 1))])
	}
	for range d.shown - len(order) {
		b.WriteString("\x1b[2K\n")
	}
	d.shown = max(d.shown, len(order))
	_, _ = io.WriteString(d.out, b.String())
}

// close shows the last state.
func (d *transferDisplay) close() {
	if d.terminal != nil && len(d.order) > 0 {
		d.redraw()
	}
}

// layerLine returns the progress of a layer as a line of ASCII.
func layerLine(l oci.Progress) string {
	line := fmt.Sprintf("%s  %-7s", layerName(l.Layer), l.Stage)
	switch {
	case l.Stage != oci.Loading:
		return line + "  " + byteCount(l.Total)
	case l.Total == 0:
		return line + "  " + byteCount(l.Done)
	}
	const width = 30
	done := int(width * min(l.Done, l.Total) / l.Total)
	return fmt.Sprintf("%s  [%s%s]  %s of %s", line, strings.Repeat("=", done), strings.Repeat(" ", width-done),
		byteCount(l.Done), byteCount(l.Total))
}

// maxName bounds the name of what has no digest.
const maxName = 60

// layerName returns the digest of a layer as Docker shows it, or what has no digest.
func layerName(layer string) string {
	hex, ok := strings.CutPrefix(layer, "sha256:")
	if !ok {
		return fault.Printable(layer, maxName)
	}
	return hex[:min(len(hex), 12)]
}
