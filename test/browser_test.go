package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	wire "encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // pictures of either kind
	_ "image/png"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/image/imagetest"
)

// shop is a page with a button, a text of two scripts, and a file. After the first purchase a click anywhere buys.
const shop = `<!DOCTYPE html>
<meta charset="utf-8"><title>Shop</title>
<body style="margin:0;height:100vh;background:#fff">
<h1 id="said">こんにちは 😀</h1>
<button id="buy">Buy</button> <a href="prices.csv" download onclick="event.stopPropagation()">Prices</a>
<script>
let n = 0;
const buy = (e) => { e.stopPropagation(); said.textContent = 'bought ' + ++n; document.body.onclick = buy };
document.getElementById('buy').onclick = buy;
</script>
`

// TestBrowser builds the ready-made template browser, and works with it as an agent and its user do: pictures without a
// display, Playwright's MCP server, and a person who looks at the display and clicks.
func TestBrowser(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_SNAPSHOTS=false", "SANDLOT_POOL_SIZE=0")...)
	archive := imagetest.BaseArchive(t)
	if out, errs, code := s.cli("image", "import", withNode(t, archive), "node:24-slim"); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	// A default template is made by itself.
	s.settings(withMirrors(t, "default_template: browser\nnetwork: {allow: [MIRRORS], allow_private: [PRIVATE]}\n", archive))
	s.restart()
	if out, errs, code := s.cli("template", "build", "browser"); code != 0 || s.templates()["browser"]["usable"] != true {
		t.Fatalf("code %d, %.3000s%s", code, out, errs)
	}
	b := &browsing{t: t, server: s, client: s.connect(older, "", nil)}
	b.call("sandbox_write_file", args{"path": "/workspace/www/index.html", "content": shop})
	b.call("sandbox_write_file", args{"path": "/workspace/www/prices.csv", "content": "apple,1\n"})
	b.call("execute_command", args{"command": "exec python3 -m http.server -d www 8000", "background": true})
	b.headless()
	b.playwright()
	b.lookOn()
}

// withNode returns a root file system with this machine's Node, as Debian's is too old for Playwright.
func withNode(t *testing.T, archive string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "node.tar")
	script := `cp "$1" "$2" && tar --append --dereference --absolute-names --transform 's,.*,./usr/local/bin/node,' -f "$2" "$3"`
	if out, err := exec.Command("bash", "-c", script, "bash", archive, path, node).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return path
}

// browsing is a home with a browser, and with the page of the shop at port 8000.
type browsing struct {
	t *testing.T
	*server
	*client
	connected *result
}

// headless takes pictures and prints with Chromium alone; letters of Japan and emoji have fonts.
func (b *browsing) headless() {
	r := b.shell("", "dmesg | grep -c 'Starting gVisor'; fc-list :lang=ja | grep -c Noto; fc-list | grep -c -i emoji; "+
		"chromium --headless --window-size=640,400 --screenshot=/workspace/shop.png --virtual-time-budget=3000 "+
		"http://localhost:8000/ >chromium.log 2>&1; echo code $?; "+
		"chromium --headless --print-to-pdf=/workspace/shop.pdf http://localhost:8000/ >>chromium.log 2>&1; "+
		"head -c 5 shop.pdf; chromium --headless --dump-dom http://localhost:8000/ 2>/dev/null | grep -c こんにちは")
	if ok, _ := regexp.MatchString(`^1\n[1-9]\d*\n[1-9]\d*\ncode 0\n%PDF-1`, r.Text); !ok {
		b.t.Fatalf("%s\n%s", r.All, b.shell("", "tail -n 20 chromium.log").All)
	}
	b.coloured(b.call("sandbox_read_file", args{"path": "/workspace/shop.png"}))
}

// coloured checks that a result has a picture in which there is a colour: the emoji.
func (b *browsing) coloured(r *result) {
	b.t.Helper()
	for _, block := range r.Content {
		picture, ok := block.(*mcp.ImageContent)
		if !ok {
			continue
		}
		decoded, _, err := image.Decode(bytes.NewReader(picture.Data))
		if err != nil {
			b.t.Fatal(err)
		}
		size := decoded.Bounds()
		for x := size.Min.X; x < size.Max.X; x++ {
			for y := size.Min.Y; y < size.Max.Y; y++ {
				if c := color.NRGBAModel.Convert(decoded.At(x, y)).(color.NRGBA); c.R > 200 && c.G > 120 && c.B < 120 {
					return
				}
			}
		}
		b.t.Fatalf("the picture of %v has no emoji in it", size)
	}
	b.t.Fatalf("no picture: %s", r.All)
}

// playwright opens the shop, looks, buys, takes a picture, prints and downloads, with Playwright's MCP server.
func (b *browsing) playwright() {
	b.connected = b.call("connect_external_mcp", args{"name": "browser", "command": "playwright-mcp"})
	b.use("navigate", args{"url": "http://localhost:8000/"})
	look := b.use("snapshot", args{})
	ref := func(what string) string {
		b.t.Helper()
		found := regexp.MustCompile(what + `[^\n]*\[ref=(\w+)\]`).FindStringSubmatch(look.All)
		if found == nil {
			b.t.Fatalf("no %s in %s", what, look.All)
		}
		return found[1]
	}
	b.coloured(b.use("take_screenshot", args{}))
	buy, prices := ref(`button "Buy"`), ref(`link "Prices"`)
	b.use("click", args{"element": "Buy", "target": buy})
	if look = b.use("snapshot", args{}); !strings.Contains(look.All, "bought 1") {
		b.t.Errorf("after the click: %s", look.All)
	}
	printed := b.use("pdf_save", args{"filename": "shop-2.pdf"})
	b.use("click", args{"element": "Prices", "target": prices})
	if r := b.shell("", "for i in $(seq 100); do find browser -name '*.csv' | grep -q . && break; sleep 0.1; done; "+
		"cat $(find browser -name '*.csv'); head -c 5 $(find . -name shop-2.pdf)"); r.Text != "apple,1\n%PDF-" {
		b.t.Errorf("downloaded and printed: %q; %s", r.All, printed.All)
	}
}

// use calls a tool of Playwright's.
func (b *browsing) use(tool string, a args) *result {
	b.t.Helper()
	r := b.call(b.connected.exposed(b.t, "browser_"+tool), a)
	if r.IsError {
		b.t.Fatalf("%s: %s", tool, r.All)
	}
	return r
}

// lookOn looks at the display by the exposed port, as the page of noVNC does, and clicks into the page.
func (b *browsing) lookOn() {
	l := b.expose(b.client, args{"port": 6080})
	local := strings.TrimPrefix(b.URL, "http://")
	for path, want := range map[string]string{"/": "novnc/vnc.html", "/novnc/vnc.html": "noVNC"} {
		if _, _, text := b.request("GET", l.path+path, nil, tokenHeader, l.token); !strings.Contains(text, want) {
			b.t.Errorf("%s: %.300q", path, text)
		}
	}
	_, _, page := b.request("GET", l.path+"/", nil, tokenHeader, l.token)
	secret := regexp.MustCompile(`websockify\?token=(\w{32})`).FindStringSubmatch(page)
	if secret == nil {
		b.t.Fatalf("the page has no token: %q", page)
	}
	// A page that the browser shows reaches the sandbox's own ports, and must not reach the display.
	for _, wrong := range []string{"", "?token=", "?token=" + strings.Repeat("0", 32)} {
		if socket, err := dialSocket(b.t.Context(), local, l.path+"/websockify"+wrong, tokenHeader+": "+l.token); err == nil {
			if _, err := openDisplay(socket); err == nil {
				b.t.Errorf("the display is open with %q", wrong)
			}
			socket.Close()
		}
	}
	socket, err := dialSocket(b.t.Context(), local, l.path+"/websockify?token="+secret[1], tokenHeader+": "+l.token)
	if err != nil {
		b.t.Fatal(err)
	}
	defer socket.Close()
	screen, err := openDisplay(socket)
	if err != nil {
		b.t.Fatal(err)
	}
	if screen.name == "" || screen.width != 1280 || screen.height != 800 {
		b.t.Errorf("the display: %+v", screen)
	}
	colours, err := screen.colours()
	if err != nil || colours < 10 {
		b.t.Errorf("the display shows %d colours, %v", colours, err)
	}
	if err := errors.Join(screen.point(640, 560, 0), screen.point(640, 560, 1), screen.point(640, 560, 0)); err != nil {
		b.t.Fatal(err)
	}
	for range 100 {
		if strings.Contains(b.use("snapshot", args{}).All, "bought 2") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.t.Errorf("the person's click did nothing: %s", b.use("snapshot", args{}).All)
}

// socket is a client's end of a websocket with binary messages.
type socket struct {
	net.Conn
	from *bufio.Reader
	left int // bytes of the message that is being read
}

// dialSocket opens a websocket.
func dialSocket(ctx context.Context, host, target, header string) (*socket, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: binary\r\n%s\r\n\r\n",
		target, host, header)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &socket{Conn: conn, from: from}, nil
}

func (s *socket) Read(p []byte) (int, error) {
	for s.left == 0 {
		var head [2]byte
		if _, err := io.ReadFull(s.from, head[:]); err != nil {
			return 0, err
		}
		size := int(head[1] & 127)
		if size >= 126 {
			number := make([]byte, 8)
			long := number[6:]
			if size == 127 {
				long = number
			}
			if _, err := io.ReadFull(s.from, long); err != nil {
				return 0, err
			}
			size = int(wire.BigEndian.Uint64(number))
		}
		switch head[0] & 15 {
		case 8:
			return 0, io.EOF
		case 9, 10:
			if _, err := io.CopyN(io.Discard, s.from, int64(size)); err != nil {
				return 0, err
			}
		default:
			s.left = size
		}
	}
	n, err := s.from.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// Write sends a message of at most 125 bytes.
func (s *socket) Write(p []byte) (int, error) {
	frame := append([]byte{0x82, 0x80 | byte(len(p)), 0, 0, 0, 0}, p...)
	rand.Read(frame[2:6])
	for i := range p {
		frame[6+i] ^= frame[2+i%4]
	}
	if _, err := s.Conn.Write(frame); err != nil {
		return 0, err
	}
	return len(p), nil
}

// display is a client of the protocol RFB, RFC 6143.
type display struct {
	io.ReadWriter
	width, height uint16
	name          string
}

func openDisplay(rw io.ReadWriter) (*display, error) {
	d := &display{ReadWriter: rw}
	version := make([]byte, 12)
	if _, err := io.ReadFull(d, version); err != nil || !bytes.HasPrefix(version, []byte("RFB 003.")) {
		return nil, fmt.Errorf("its version is %q: %w", version, err)
	}
	types := make([]byte, 1)
	if _, err := d.Write([]byte("RFB 003.008\n")); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(d, types); err != nil {
		return nil, err
	}
	types = make([]byte, types[0])
	if _, err := io.ReadFull(d, types); err != nil || !bytes.Contains(types, []byte{1}) {
		return nil, fmt.Errorf("ways to prove who one is: %v, %w", types, err)
	}
	if _, err := d.Write([]byte{1}); err != nil { // none: the port's link proves it
		return nil, err
	}
	var ok uint32
	if err := wire.Read(d, wire.BigEndian, &ok); err != nil || ok != 0 {
		return nil, fmt.Errorf("refused with %d: %w", ok, err)
	}
	if _, err := d.Write([]byte{1}); err != nil { // others may look on, too
		return nil, err
	}
	var head struct {
		Width, Height uint16
		Format        [16]byte
		Name          uint32
	}
	if err := wire.Read(d, wire.BigEndian, &head); err != nil {
		return nil, err
	}
	name := make([]byte, min(head.Name, 1000))
	_, err := io.ReadFull(d, name)
	d.width, d.height, d.name = head.Width, head.Height, string(name)
	return d, err
}

// colours returns how many colours the display shows.
func (d *display) colours() (int, error) {
	ask := []byte{3, 0, 0, 0, 0, 0, byte(d.width >> 8), byte(d.width), byte(d.height >> 8), byte(d.height)}
	if _, err := d.Write(ask); err != nil {
		return 0, err
	}
	seen := map[[4]byte]bool{}
	for all := 0; all < int(d.width)*int(d.height); {
		var head struct {
			Kind, _    byte
			Rectangles uint16
		}
		if err := wire.Read(d, wire.BigEndian, &head); err != nil {
			return 0, err
		}
		if head.Kind != 0 {
			return 0, fmt.Errorf("a message of kind %d", head.Kind)
		}
		for range head.Rectangles {
			var r struct {
				X, Y, Width, Height uint16
				Encoding            int32
			}
			if err := wire.Read(d, wire.BigEndian, &r); err != nil || r.Encoding != 0 {
				return 0, fmt.Errorf("a rectangle of encoding %d: %w", r.Encoding, err)
			}
			pixels := make([][4]byte, int(r.Width)*int(r.Height))
			if err := wire.Read(d, wire.LittleEndian, pixels); err != nil {
				return 0, err
			}
			for _, p := range pixels {
				seen[p] = true
			}
			all += len(pixels)
		}
	}
	return len(seen), nil
}

// point moves the mouse, with buttons that are pressed as bits.
func (d *display) point(x, y uint16, buttons byte) error {
	_, err := d.Write([]byte{5, buttons, byte(x >> 8), byte(x), byte(y >> 8), byte(y)})
	return err
}
