package catalog

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"sandlot/internal/tool"
)

// pixel is a whole GIF, in base64.
const pixel = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"

func picture(format string, width, height int) []byte {
	var b bytes.Buffer
	p := image.NewPaletted(image.Rect(0, 0, width, height), palette.Plan9)
	switch format {
	case "png":
		_ = png.Encode(&b, p)
	case "jpeg":
		_ = jpeg.Encode(&b, p, nil)
	case "gif":
		_ = gif.Encode(&b, p, nil)
	case "webp":
		b.WriteString("RIFF\x20\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x1d\x00\x00\x13\x00\x00")
		b.Write(make([]byte, 10))
	}
	return b.Bytes()
}

// Only images that models take are images of a result: the whole ones of the known types, with the type that they have.
// Others become texts that say why. Code gets all of them.
func TestImagesForModels(t *testing.T) {
	small := picture("png", 3, 2)
	svg := []byte("<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"><circle r=\"1\"/></svg>")
	for name, tt := range map[string]struct {
		data []byte
		mime string // that the server says
		want string // the image's type, or what the text says
	}{
		"PNG":                  {small, "image/png", "image/png"},
		"JPEG":                 {picture("jpeg", 3, 2), "image/jpeg", "image/jpeg"},
		"GIF":                  {picture("gif", 3, 2), "image/gif", "image/gif"},
		"WebP":                 {picture("webp", 0, 0), "image/webp", "image/webp"},
		"a PNG called a JPEG":  {small, "image/jpeg", "image/png"},
		"a PNG called image/*": {small, "image/*", "image/png"},
		"a PNG called jpg":     {small, "jpg", "image/png"},
		"a JPEG called jpg":    {picture("jpeg", 3, 2), "image/jpg", "image/jpeg"},
		"a PNG called text":    {small, "text/plain", "image/png"},
		"a PNG without a type": {small, "", "image/png"},
		"in capitals":          {small, "IMAGE/PNG", "image/png"},
		"a cut PNG":            {small[:len(small)-8], "image/png", "it is not a whole PNG"},
		"a header alone":       {small[:8], "image/png", "it is not a whole PNG"},
		"a cut JPEG":           {picture("jpeg", 3, 2)[:200], "image/jpeg", "it is not a whole JPEG"},
		"a cut GIF":            {picture("gif", 3, 2)[:30], "image/gif", "it is not a whole GIF"},
		"a cut WebP":           {picture("webp", 0, 0)[:25], "image/webp", "it is not a whole WebP"},
		"a PNG without pixels": {bytes.Replace(small, []byte("IHDR\x00\x00\x00\x03"), []byte("IHDR\x00\x00\x00\x00"), 1), "image/png", "not a whole PNG"},
		"wide":                 {picture("png", tool.MaxImageSide+1, 1), "image/png", "8001 × 1 pixels are too many"},
		"high":                 {picture("gif", 1, tool.MaxImageSide+1), "image/gif", "1 × 8001 pixels are too many"},
		"large":                {append(append(picture("jpeg", 3, 2), make([]byte, tool.MaxImageBytes)...), 0xff, 0xd9), "image/jpeg", "bytes are too many"},
		"SVG":                  {svg, "image/svg+xml", "<circle r="},
		"an SVG called a PNG":  {svg, "image/png", "<circle r="},
		"BMP":                  {[]byte("BM\x46\x00\x00\x00\x00\x00\x00\x00"), "image/bmp", "(image/bmp, 10 bytes) is not shown: it is not a PNG, JPEG, GIF or WebP"},
		"TIFF":                 {[]byte("II*\x00\x08\x00\x00\x00"), "image/tiff", "(image/tiff, 8 bytes) is not shown"},
		"AVIF":                 {[]byte("\x00\x00\x00\x20ftypavif"), "image/avif", "is not shown"},
		"HTML called a PNG":    {[]byte("<html>not found</html>"), "image/png", "(image/png, 22 bytes) is not shown: it is not a PNG"},
		"empty":                {nil, "image/png", "it is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			data := base64.StdEncoding.EncodeToString(tt.data)
			block := fmt.Sprintf(`{"type":"image","data":%q,"mimeType":%q}`, data, tt.mime)
			if tt.mime == "" {
				block = fmt.Sprintf(`{"type":"image","data":%q}`, data)
			}
			check := func(place string, got json.RawMessage) {
				t.Helper()
				var b struct{ Type, Data, MIMEType, Text string }
				if err := json.Unmarshal(got, &b); err != nil {
					t.Fatalf("%s: %v", place, err)
				}
				shown := tool.IsImage(tt.want)
				if shown && (b.Type != "image" || b.MIMEType != tt.want || b.Data != data) ||
					!shown && (b.Type != "text" || !strings.Contains(b.Text, tt.want) || b.Data != "") {
					t.Errorf("%s: %.300s", place, got)
				}
			}
			raw := json.RawMessage(`{"content":[` + block + `]}`)
			check("a result", firstBlock(t, "content", raw, func(raw json.RawMessage) (json.RawMessage, error) {
				safe, _, err := Result(t.Context(), raw, false)
				return safe, err
			}))
			var m struct{ Content json.RawMessage }
			message := firstBlock(t, "messages", json.RawMessage(`{"messages":[{"role":"user","content":`+block+`}]}`),
				func(raw json.RawMessage) (json.RawMessage, error) { return OtherResult("prompts/get", "", raw) })
			if err := json.Unmarshal(message, &m); err != nil {
				t.Fatal(err)
			}
			check("a prompt", m.Content)
			if tt.mime == "" {
				return
			}
			whole := firstBlock(t, "content", raw, func(raw json.RawMessage) (json.RawMessage, error) {
				safe, _, err := Result(t.Context(), raw, true)
				return safe, err
			})
			if string(whole) != block {
				t.Errorf("code gets %.300s", whole)
			}
		})
	}
}

func firstBlock(t *testing.T, member string, raw json.RawMessage, do func(json.RawMessage) (json.RawMessage, error)) json.RawMessage {
	t.Helper()
	safe, err := do(bytes.Clone(raw))
	var r map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(safe, &r)
	}
	var blocks []json.RawMessage
	if err == nil {
		err = json.Unmarshal(r[member], &blocks)
	}
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%.300s: %v", safe, err)
	}
	return blocks[0]
}

// Clients show models an image in a resource as an image, too.
func TestImagesInResources(t *testing.T) {
	small := base64.StdEncoding.EncodeToString(picture("png", 3, 2))
	for raw, want := range map[string]string{
		`{"uri":"a:b","mimeType":"image/png","blob":"` + small + `"}`:                   `"mimeType":"image/png"`,
		`{"uri":"a:b","mimeType":"image/jpeg","blob":"` + small + `"}`:                  `"mimeType":"image/png"`,
		`{"uri":"a:b","mimeType":"image/png","blob":"` + small[:len(small)-8] + `"}`:    `[the image a:b (image/png, `,
		`{"uri":"a:b","mimeType":"image/tiff","blob":"SUkqAA=="}`:                       `"blob":"SUkqAA=="`,
		`{"uri":"a:b","mimeType":"application/pdf","blob":"` + small + `"}`:             `"mimeType":"application/pdf"`,
		`{"uri":"a:b","mimeType":"image/png","text":"a text"}`:                          `"text":"a text"`,
		`{"uri":"a:b","mimeType":"image/png","blob":"%"}`:                               `its data is not base64`,
		`{"uri":"a:b","mimeType":"image/gif","blob":"R0lGODlhAQABAIAAAAAAAP///yH5BAE"}`: `is not base64`,
	} {
		got := firstBlock(t, "content", json.RawMessage(`{"content":[{"type":"resource","resource":`+raw+`}]}`),
			func(raw json.RawMessage) (json.RawMessage, error) {
				safe, _, err := Result(t.Context(), raw, false)
				return safe, err
			})
		if !strings.Contains(string(got), want) {
			t.Errorf("%.100s: %.300s, want %s", raw, got, want)
		}
	}
}

// Base64 may have line breaks in MCP, and none in models' APIs.
func TestImageWithLineBreaks(t *testing.T) {
	raw := `{"content":[{"type":"image","mimeType":"image/gif","data":"` + pixel[:20] + `\r\n` + pixel[20:] + `\n"}]}`
	got := firstBlock(t, "content", json.RawMessage(raw),
		func(raw json.RawMessage) (json.RawMessage, error) {
			safe, _, err := Result(t.Context(), raw, false)
			return safe, err
		})
	if !strings.Contains(string(got), `"`+pixel+`"`) {
		t.Errorf("%s", got)
	}
}
