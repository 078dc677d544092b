package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"sandlot/internal/image/imagetest"
)

// picture is a command that starts Chromium, takes a picture of a page, and says how large it is.
const picture = `rm -f picture.png; chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=800,600 ` +
	`--user-data-dir=$(mktemp -d) --screenshot=$PWD/picture.png 'data:text/html,<h1>Apples</h1>' >/dev/null 2>&1; ` +
	`head -c 4 picture.png | tail -c 3`

// browser measures the first picture of a page, by Chromium in a session of the template browser, and on the host.
func browser(b *bench) (section, error) {
	h := &harness{ctx: b.ctx}
	var archive string
	if err := h.do(func() {
		archive = imagetest.BaseArchive(h)
		imagetest.Install(h, "chromium", "chromium")
		imagetest.Install(h, "chromium-headless-shell", "chromium-headless-shell")
	}); err != nil {
		return section{}, err
	}
	mirrors, err := imagetest.Mirrors(archive)
	if err != nil {
		return section{}, err
	}
	var allow, private []string
	for _, mirror := range mirrors {
		allow = append(allow, mirror)
		private = append(private, mirror+"=0.0.0.0/0") // a machine may have its mirrors at addresses of its own
	}
	var inside, host, shell samples
	err = b.with(func(s *server) error {
		if _, err := s.cli("image", "import", archive, "node:24-slim"); err != nil {
			return err
		}
		if _, err := s.cli("template", "build", "browser"); err != nil {
			return err
		}
		c := s.bare("")
		defer c.close()
		r, err := c.call(s.ctx, "execute_command", args{"command": "true", "template": "browser", "session_id": "new"})
		if err != nil {
			return err
		}
		dir, err := tempDir()
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		for i := range pick(b, 11, 2) {
			to, there, beside := &inside, &host, &shell
			if i == 0 { // does not count: files are read for the first time
				to, there, beside = new(samples), new(samples), new(samples)
			}
			err := to.take(func() error {
				a, err := c.call(s.ctx, "execute_command", args{"command": picture, "session_id": r.session})
				if err == nil && !strings.Contains(a.text, "PNG") {
					err = fmt.Errorf("no picture: %.300q", a.text)
				}
				return err
			})
			if err == nil {
				err = there.take(func() error { return takePicture(dir, picture) })
			}
			if err == nil {
				headless := strings.Replace(picture, "chromium --headless", "chromium-headless-shell", 1)
				err = beside.take(func() error { return takePicture(dir, headless) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, "SANDLOT_POOL_SIZE=0", "SANDLOT_NETWORK_ALLOW="+strings.Join(allow, ","),
		"SANDLOT_NETWORK_ALLOW_PRIVATE="+strings.Join(private, ","))
	if err != nil {
		return section{}, err
	}
	t := timings("from a call to the first picture of a page")
	n := ratio(inside, host, 50)
	t.add("Chromium in a session of the template `browser`", inside, fmt.Sprintf("%.2f × the host's; %s", n,
		verdict("P50 ≤ 2 ×", n <= 2)))
	t.add("the same command on the host", host)
	t.add("beside: Chromium's headless shell on the host, which the template starts for this command", shell)
	return section{title: "A browser", method: "`chromium --headless --screenshot` of a page in its address, in a session " +
		"that runs, by a bare call of `execute_command`; and on the host, by a shell. Each starts Chromium, and ends it. They " +
		"take turns.", tables: []table{t}}, nil
}

// takePicture runs a command that takes a picture, on the host.
func takePicture(dir, command string) error {
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil && string(out) != "PNG" {
		err = fmt.Errorf("no picture on the host: %.300q", out)
	}
	return err
}
