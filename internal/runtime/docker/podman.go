package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandlot/internal/sandbox"
)

// libpod sends a request to Podman's own API, which can do more than its imitation of Docker's, and decodes the answer
// unless it is to be nil.
func (r *Runtime) libpod(ctx context.Context, path string, query url.Values, answer any) error {
	dial := r.client.Dialer()
	daemon := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://podman/v4.0.0/libpod"+path+"?"+
		query.Encode(), nil)
	if err != nil {
		return err
	}
	got, err := daemon.Do(request)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	body := io.LimitReader(got.Body, maxStats)
	if got.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(body, 4096))
		return fmt.Errorf("%s: %s", got.Status, text)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(body).Decode(answer)
}

// prepare makes Podman mount everything and not start the first program yet, and checks that this is the agent. Docker
// has nothing like it.
func (b *box) prepare(ctx context.Context, id string, _ client.ContainerCreateOptions) error {
	if err := b.runtime.libpod(ctx, "/containers/"+id+"/init", nil, nil); err != nil {
		return fmt.Errorf("Podman does not prepare the container: %w", err)
	}
	return b.checkAgent(ctx)
}

// commit makes an image with this configuration of a container, and returns its id. Podman's imitation of Docker's API
// would leave the configuration out.
func (r *Runtime) commit(ctx context.Context, of, name, comment string, config *container.Config) (string, error) {
	if !r.known().isPodman {
		saved, err := r.client.ContainerCommit(ctx, of,
			client.ContainerCommitOptions{Reference: name, Comment: comment, Config: config})
		return saved.ID, err
	}
	repo, tag, _ := strings.Cut(name, ":")
	query := url.Values{"container": {of}, "repo": {repo}, "tag": {tag}, "comment": {comment}, "format": {"docker"},
		"pause": {"true"}}
	for _, label := range slices.Sorted(maps.Keys(config.Labels)) {
		query.Add("changes", fmt.Sprintf(`LABEL "%s"="%s"`, label, config.Labels[label]))
	}
	for _, kv := range config.Env { // beside those of the container
		key, value, _ := strings.Cut(kv, "=")
		query.Add("changes", fmt.Sprintf(`ENV "%s"="%s"`, key, value))
	}
	if config.User != "" {
		query.Add("changes", "USER "+config.User)
	}
	if config.WorkingDir != "" {
		query.Add("changes", "WORKDIR "+config.WorkingDir)
	}
	var saved struct{ ID string }
	if err := r.libpod(ctx, "/commit", query, &saved); err != nil {
		return "", err
	}
	if saved.ID == "" {
		return "", fmt.Errorf("%w: Podman does not say which image it has made", sandbox.ErrUnavailable)
	}
	return saved.ID, nil
}
