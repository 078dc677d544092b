package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
)

// get reads the answer to a request for a path.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (answer T, err error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	err = c.JSON(ctx, http.MethodGet, path, nil, &answer)
	return answer, err
}

// post sends in, and reads the answer.
func post[T any](ctx context.Context, c *Client, path string, in any) (answer T, err error) {
	err = c.JSON(ctx, http.MethodPost, path, in, &answer)
	return answer, err
}

// all reads a list with all its pages.
func all[T any](ctx context.Context, c *Client, path string) (answer T, err error) {
	err = c.List(ctx, path, &answer)
	return answer, err
}

// of returns a query with the values that are not empty.
func of(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

// segments escapes the parts of a name with slashes.
func segments(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// Templates lists the templates.
func (c *Client) Templates(ctx context.Context) ([]hub.Template, error) {
	list, err := all[protocol.TemplateList](ctx, c, "/v1/templates")
	return list.Templates, err
}

// BuildTemplate asks for a template to be built, and does not wait for it.
func (c *Client) BuildTemplate(ctx context.Context, name string) (hub.Template, error) {
	asked, err := post[protocol.TemplateRequested](ctx, c, "/v1/templates/"+url.PathEscape(name)+"/build", nil)
	return asked.Template, err
}

// Images lists the images of the server's store, and the pulls.
func (c *Client) Images(ctx context.Context) (hub.ImageList, error) {
	return get[hub.ImageList](ctx, c, "/v1/images", nil)
}

// PullImage begins to get an image, and does not wait for it.
func (c *Client) PullImage(ctx context.Context, r hub.ImageRequest) (hub.ImagePull, error) {
	begun, err := post[protocol.PullBegun](ctx, c, "/v1/images", r)
	return begun.Pull, err
}

// EndPull ends a pull.
func (c *Client) EndPull(ctx context.Context, id string) error {
	return c.JSON(ctx, http.MethodDelete, "/v1/pulls/"+url.PathEscape(id), nil, nil)
}

// RemoveImage removes an image by its name or digest.
func (c *Client) RemoveImage(ctx context.Context, name string) (removed hub.ImageRemoved, err error) {
	err = c.JSON(ctx, http.MethodDelete, "/v1/images/"+segments(name), nil, &removed)
	return removed, err
}

// Doctor checks the server's machine, and waits for the report.
func (c *Client) Doctor(ctx context.Context) (hub.DoctorReport, error) {
	return post[hub.DoctorReport](ctx, c, "/v1/doctor", nil)
}

// Tokens lists the tokens of a user; empty: of the one who asks.
func (c *Client) Tokens(ctx context.Context, user string) (hub.TokenList, error) {
	return get[hub.TokenList](ctx, c, "/v1/tokens", of("principal", user))
}

// NewToken makes a token.
func (c *Client) NewToken(ctx context.Context, n hub.NewToken) (hub.MadeToken, error) {
	return post[hub.MadeToken](ctx, c, "/v1/tokens", n)
}

// RevokeToken revokes a token by its id.
func (c *Client) RevokeToken(ctx context.Context, id string) error {
	return c.JSON(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
}

// Users lists all users, with their tokens.
func (c *Client) Users(ctx context.Context) (hub.UserList, error) {
	return get[hub.UserList](ctx, c, "/v1/users", nil)
}

// CheckPolicy asks what would happen.
func (c *Client) CheckPolicy(ctx context.Context, q hub.PolicyCheck) (hub.PolicyVerdict, error) {
	return post[hub.PolicyVerdict](ctx, c, "/v1/policy/check", q)
}

// Usage returns what a user has used in the last days; empty: the one who asks.
func (c *Client) Usage(ctx context.Context, user string, days int) (hub.Usage, error) {
	return get[hub.Usage](ctx, c, "/v1/usage", of("principal", user, "days", strconv.Itoa(days)))
}

// UsageOfAll returns what all users have used in the last days.
func (c *Client) UsageOfAll(ctx context.Context, days int) (hub.Usage, error) {
	return get[hub.Usage](ctx, c, "/v1/usage/all", of("days", strconv.Itoa(days)))
}

// Quotas returns the quotas of a user; empty: of the one who asks.
func (c *Client) Quotas(ctx context.Context, user string) (hub.Quotas, error) {
	return get[hub.Quotas](ctx, c, "/v1/quota", of("principal", user))
}

// Servers lists the third-party servers.
func (c *Client) Servers(ctx context.Context) (hub.ServerList, error) {
	return all[hub.ServerList](ctx, c, "/v1/connections")
}

// Prompts lists the prompts of all third-party servers.
func (c *Client) Prompts(ctx context.Context) ([]hub.ServerPromptRow, error) {
	list, err := all[protocol.PromptPage](ctx, c, "/v1/prompts")
	return list.Prompts, err
}

// SearchRegistry searches for third-party servers in registries; an empty registry: in all.
func (c *Client) SearchRegistry(ctx context.Context, words, registry string, limit int) (hub.RegistryFound, error) {
	return get[hub.RegistryFound](ctx, c, "/v1/registry/servers",
		url.Values{"search": {words}, "registry": {registry}, "limit": {strconv.Itoa(limit)}})
}

// RegistryEntry returns an entry of a registry; an empty version: the latest.
func (c *Client) RegistryEntry(ctx context.Context, name, version, registry string) (hub.RegistryEntry, error) {
	return get[hub.RegistryEntry](ctx, c, "/v1/registry/servers/"+segments(name), of("version", version, "registry",
		registry))
}

// PlanRegistry returns the tool call that adds a server of a registry.
func (c *Client) PlanRegistry(ctx context.Context, choice hub.RegistryChoice) (hub.RegistryPlan, error) {
	return post[hub.RegistryPlan](ctx, c, "/v1/registry/plan", choice)
}

// FollowImages calls each with what the images and pulls of the server are, and then with each change, until each
// returns true, or an error.
func (c *Client) FollowImages(ctx context.Context, each func(hub.ImagesChange) (done bool, err error)) error {
	return follow(ctx, c, "images", struct{}{}, func(m LiveMessage) (bool, error) {
		var change hub.ImagesChange
		if m.Op != liveData {
			return false, nil
		}
		if err := json.Unmarshal(m.Data, &change); err != nil {
			return false, err
		}
		return each(change)
	})
}

// FollowTemplates is FollowImages for templates.
func (c *Client) FollowTemplates(ctx context.Context, each func(hub.TemplatesChange) (done bool, err error)) error {
	return follow(ctx, c, "templates", struct{}{}, func(m LiveMessage) (bool, error) {
		var change hub.TemplatesChange
		if m.Op != liveData {
			return false, nil
		}
		if err := json.Unmarshal(m.Data, &change); err != nil {
			return false, err
		}
		return each(change)
	})
}
