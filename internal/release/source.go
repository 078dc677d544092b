package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The largest files that are read into memory.
const (
	maxSums     = 1 << 20
	maxManifest = 16 << 20
)

// idleTimeout bounds the time in which a server sends nothing.
const idleTimeout = time.Minute

// Release is a release whose list of files was verified.
type Release struct {
	Manifest

	at   string // a folder, or a base URL
	web  bool
	sums map[string]string // SHA-256 in hexadecimal, by name
}

// Open reads the list of the files of a release at a folder or a base URL. With signers, a file of allowed signers as
// ssh-keygen reads it, the checksums must be signed by one of them. Without, they guard against errors of the transfer
// and against mirrors alone, so that the URL must be one of HTTPS or of this machine.
func Open(ctx context.Context, at, signers string) (*Release, error) {
	r := &Release{at: strings.TrimRight(at, "/"), sums: map[string]string{}}
	if u, err := url.Parse(at); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		r.web = true
		if u.Scheme == "http" && !isLoopback(u.Hostname()) && signers == "" {
			return nil, fmt.Errorf("%s: over http anybody on the way can replace the release; use https, or give "+
				"--signers", at)
		}
	}
	sums, err := r.read(ctx, SumsName, maxSums)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not a release: it has no %s", at, SumsName)
	}
	if err != nil {
		return nil, err
	}
	if signers != "" {
		if err := r.verifySignature(ctx, sums, signers); err != nil {
			return nil, err
		}
	}
	if err := r.parseSums(string(sums)); err != nil {
		return nil, err
	}
	text, err := r.read(ctx, ManifestName, maxManifest)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	if err := r.compare(ManifestName, sum[:]); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &r.Manifest); err != nil {
		return nil, fmt.Errorf("%s: %w", ManifestName, err)
	}
	return r, r.check()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// parseSums reads a list of checksums as sha256sum writes it.
func (r *Release) parseSums(text string) error {
	line := regexp.MustCompile(`^([0-9a-f]{64})  (.+)$`)
	for l := range strings.Lines(text) {
		m := line.FindStringSubmatch(strings.TrimSuffix(l, "\n"))
		if m == nil || !fileName.MatchString(m[2]) || r.sums[m[2]] != "" {
			return fmt.Errorf("%s is damaged: %q", SumsName, l)
		}
		r.sums[m[2]] = m[1]
	}
	return nil
}

// compare compares the checksum of a file with that of the list.
func (r *Release) compare(name string, sum []byte) error {
	switch want, got := r.sums[name], hex.EncodeToString(sum); {
	case want == "":
		return fmt.Errorf("%s has no checksum of %s", SumsName, name)
	case want != got:
		return fmt.Errorf("the checksum of %s is %s, and should be %s: the file is damaged, or somebody has changed "+
			"it; nothing was installed", name, got, want)
	}
	return nil
}

// verifySignature lets ssh-keygen verify the signature of the checksums.
func (r *Release) verifySignature(ctx context.Context, sums []byte, signers string) error {
	signature, err := r.read(ctx, SignatureName, maxSums)
	if err != nil {
		return fmt.Errorf("the release is not signed, or its signature cannot be read: %w", err)
	}
	f, err := os.CreateTemp("", "sandlot-signature-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(signature)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "ssh-keygen", "-Y", "verify", "-f", signers, "-I", Signer, "-n", SignatureNamespace,
		"-s", f.Name())
	cmd.Stdin = bytes.NewReader(sums)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("no signer in %s vouches for the release (%w): %s", signers, err, bytes.TrimSpace(out))
	}
	return nil
}

// read reads a file of the release that fits into memory.
func (r *Release) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := r.open(ctx, cancel, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s is too large", name)
	}
	return text, nil
}

// download writes a file of the release to path, and compares its checksum. What is not that file is removed.
func (r *Release) download(ctx context.Context, file File, path string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := r.open(ctx, cancel, file.Name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, to.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(from, file.Size+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading %s: %w", file.Name, err)
	case n != file.Size:
		return fmt.Errorf("%s has %s bytes, and should have %d: it did not arrive whole; nothing was installed",
			file.Name, atLeast(n, file.Size), file.Size)
	}
	return r.compareHash(file.Name, sum)
}

func (r *Release) compareHash(name string, sum hash.Hash) error { return r.compare(name, sum.Sum(nil)) }

func atLeast(n, limit int64) string {
	if n > limit {
		return "more"
	}
	return fmt.Sprint(n)
}

// client takes no redirection from HTTPS to HTTP.
var client = &http.Client{CheckRedirect: func(r *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("too many redirections")
	}
	if r.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
		return fmt.Errorf("it redirects to %s, which is not https", r.URL.Redacted())
	}
	return nil
}}

// open opens a file of the release. It calls cancel when a server sends nothing for too long.
func (r *Release) open(ctx context.Context, cancel func(), name string) (io.ReadCloser, error) {
	if !r.web {
		return os.Open(filepath.Join(r.at, name))
	}
	idle := time.AfterFunc(idleTimeout, cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.at+"/"+name, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		idle.Stop()
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		idle.Stop()
		err := fmt.Errorf("%s: %s", request.URL.Redacted(), response.Status)
		if response.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
		return nil, errors.Join(err, response.Body.Close())
	}
	return &watched{response.Body, idle}, nil
}

// watched is the body of an answer that must not pause for too long.
type watched struct {
	io.ReadCloser
	idle *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.idle.Reset(idleTimeout)
	return n, err
}

func (w *watched) Close() error {
	w.idle.Stop()
	return w.ReadCloser.Close()
}
