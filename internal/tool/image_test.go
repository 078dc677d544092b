package tool

import (
	"bytes"
	"image"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"
	"testing"
)

// Only a whole image, of a size that models' APIs take, counts as one.
func TestCheckImage(t *testing.T) {
	encode := func(format string, width, height int) []byte {
		var b bytes.Buffer
		picture := image.NewPaletted(image.Rect(0, 0, width, height), palette.Plan9)
		switch format {
		case "png":
			png.Encode(&b, picture)
		case "jpeg":
			jpeg.Encode(&b, picture, nil)
		case "gif":
			gif.Encode(&b, picture, nil)
		}
		return b.Bytes()
	}
	webp := func(kind string, body ...byte) []byte {
		b := append([]byte("RIFF\x00\x00\x00\x00WEBP"+kind+"\x0a\x00\x00\x00"), body...)
		b = append(b, make([]byte, max(0, 40-len(b)))...)
		b[4] = byte(len(b) - 8)
		return b
	}
	whole := map[string][]byte{"image/png": encode("png", 30, 20), "image/jpeg": encode("jpeg", 30, 20),
		"image/gif": encode("gif", 30, 20), "image/webp": webp("VP8X", 0, 0, 0, 0, 29, 0, 0, 19, 0, 0)}
	for want, data := range whole {
		if mime, problem := CheckImage(data); mime != want || problem != "" || !IsImage(want) {
			t.Errorf("%s: %s, %q", want, mime, problem)
		}
		for n := range len(data) - 1 {
			if _, problem := CheckImage(data[:n]); problem == "" {
				t.Errorf("%s: %d of %d bytes count as whole", want, n, len(data))
			}
		}
	}
	// Programs leave wrong checksums of what decoders skip: the icon of a well-known server has one.
	png := whole["image/png"]
	profile := append([]byte("\x00\x00\x00\x02iCCPxx"), 1, 2, 3, 4)
	if _, problem := CheckImage(slices.Concat(png[:33], profile, png[33:])); problem != "" {
		t.Errorf("with a profile whose checksum is wrong: %s", problem)
	}
	changed := bytes.Clone(whole["image/png"])
	changed[20] ^= 1
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"a changed byte": {changed, "not a whole PNG"},
		"wide":           {encode("png", 8001, 1), "8001 × 1 pixels"},
		"high":           {encode("gif", 1, 8001), "1 × 8001 pixels"},
		"a wide WebP":    {webp("VP8X", 0, 0, 0, 0, 0, 0x20, 0, 19, 0, 0), "8193 × 20 pixels"},
		"an odd WebP":    {webp("VP9 "), "not a whole WebP"},
		"text":           {[]byte("<html>"), "not a PNG"},
		"nothing":        {nil, "not a PNG"},
		"much": {append(append(bytes.Clone(whole["image/jpeg"]), make([]byte, MaxImageBytes)...), 0xff, 0xd9),
			"bytes are too many"},
	} {
		if _, problem := CheckImage(c.data); !strings.Contains(problem, c.says) {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
