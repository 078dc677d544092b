package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// transfer copies the same bytes to a session and back, and on the host.
type transfer struct {
	*server
	http *http.Client
	url  string
	file string // on the host
	data []byte
	back []byte
}

// move is one kind of copy.
type move struct {
	name       string
	run, check func() error
	took       samples
}

// files measures files over the HTTP API.
func files(b *bench) (section, error) {
	size := pick(b, 256, 16)
	var rows []*move
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		session, err := open(b.ctx, c)
		if err != nil {
			return err
		}
		t := s.newTransfer(session, size<<20)
		rows = t.moves(c, session)
		for range pick(b, 5, 2) {
			for _, r := range rows {
				if err := errors.Join(r.took.take(r.run), r.check()); err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return section{}, err
	}
	return section{title: "Files",
		method: fmt.Sprintf("`PUT` and `GET` of `/v1/sessions/{id}/files/workspace/data` with %d MB (2²⁰ bytes) of "+
			"random data, each in turn, with a Go HTTP client that has buffers of 256 KiB. "+
			"After each upload the sandbox computes the file's SHA-256, after each download the bytes are compared; "+
			"that is not in the time. The same bytes are written and read on the host's own disk too; nothing is "+
			"flushed to the device in either case. With few samples the 95 %% and 99 %% columns are the slowest one.",
			size),
		tables: []table{speeds(rows, size)}}, nil
}

func (s *server) newTransfer(session string, size int) *transfer {
	t := &transfer{server: s, http: &http.Client{Transport: &http.Transport{WriteBufferSize: 256 << 10,
		ReadBufferSize: 256 << 10}},
		url:  s.url + "/v1/sessions/" + session + "/files/workspace/data",
		file: filepath.Join(s.state, "data"), data: make([]byte, size), back: make([]byte, size)}
	rand.NewChaCha8([32]byte{1}).Read(t.data)
	return t
}

func (t *transfer) upload() error {
	q, err := http.NewRequestWithContext(t.ctx, "PUT", t.url, bytes.NewReader(t.data))
	if err != nil {
		return err
	}
	resp, err := t.http.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("PUT: HTTP %d: %s", resp.StatusCode, text)
	}
	return err
}

func (t *transfer) download() error {
	q, err := http.NewRequestWithContext(t.ctx, "GET", t.url, nil)
	if err != nil {
		return err
	}
	resp, err := t.http.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(t.data)) {
		return fmt.Errorf("GET: HTTP %d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
	_, err = io.ReadFull(resp.Body, t.back)
	return err
}

func (t *transfer) write() error { return os.WriteFile(t.file, t.data, 0o600) }

func (t *transfer) read() error {
	f, err := os.Open(t.file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.ReadFull(f, t.back)
	return err
}

// moves returns the kinds of copies, in the order in which they are measured.
func (t *transfer) moves(c client, session string) []*move {
	fine := func() error { return nil }
	return []*move{
		{name: "upload (`PUT`)", run: t.upload, check: func() error { return t.arrived(c, session) }},
		{name: "download (`GET`)", run: t.download, check: t.returned},
		{name: "the host itself: write a file", run: t.write, check: fine},
		{name: "the host itself: read it", run: t.read, check: t.returned},
	}
}

// arrived compares the hash of the file in the sandbox.
func (t *transfer) arrived(c client, session string) error {
	sum := sha256.Sum256(t.data)
	code := "import hashlib; hashlib.file_digest(open('/workspace/data', 'rb'), 'sha256').hexdigest()"
	_, err := want(t.ctx, c, session, code, "'"+hex.EncodeToString(sum[:])+"'")
	return err
}

// returned compares the bytes that came back, and clears them.
func (t *transfer) returned() error {
	if !bytes.Equal(t.back, t.data) {
		return errors.New("a wrong answer: other bytes came back")
	}
	clear(t.back)
	return nil
}

func speeds(rows []*move, size int) table {
	t := table{Head: []string{fmt.Sprintf("%d MB", size), "samples", "P50 MB/s", "P95 MB/s", "P99 MB/s", "P50 time",
		"goal"}}
	for i, r := range rows {
		row := []string{r.name, fmt.Sprint(len(r.took))}
		for _, p := range []float64{50, 95, 99} {
			row = append(row, fmt.Sprintf("%.0f", speed(size, r.took.p(p))))
		}
		row = append(row, show(r.took.p(50)))
		if i < 2 {
			row = append(row, verdict("P50 ≥ 150 MB/s", speed(size, r.took.p(50)) >= 150))
		}
		t.Rows = append(t.Rows, row)
		t.keep(r.name, r.took)
	}
	return t
}

func speed(megabytes int, took time.Duration) float64 { return float64(megabytes) / took.Seconds() }
