// Oidcprovider is an OIDC provider for tests: the example of zitadel/oidc, with access tokens that are JWTs for the
// resource that the client asks for (RFC 8707), as an MCP client does. It is a module of its own, so that the server
// does not depend on what it needs.
//
//	oidcprovider PORT REDIRECT_URI
//
// The users are those of the example: test-user@localhost with the password verysecure.
package main

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

func main() {
	issuer := "http://localhost:" + os.Args[1]
	storage.RegisterClients(storage.NativeClient("mcp-client", os.Args[2]))
	users := storage.NewUserStore(issuer)
	s := &resources{Storage: storage.NewStorage(users), asked: map[string]string{}}
	router := exampleop.SetupServer(issuer, s, slog.New(slog.NewTextHandler(os.Stderr, nil)), false)
	server := &http.Server{Addr: "127.0.0.1:" + os.Args[1], Handler: s.remember(router), ReadHeaderTimeout: time.Minute}
	log.Fatal(server.ListenAndServe())
}

// resources is the example's storage. The tokens for a request are for the resource that the request names.
type resources struct {
	*storage.Storage

	mu    sync.Mutex
	asked map[string]string // resources, by the request's state
}

// remember stores the resource of each authorization request.
func (s *resources) remember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("state") != "" && q.Get("resource") != "" {
			s.mu.Lock()
			s.asked[q.Get("state")] = q.Get("resource")
			s.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
}

// forResource is an authorization request whose tokens are for a resource.
type forResource struct {
	*storage.AuthRequest
	resource string
}

func (r forResource) GetAudience() []string { return []string{r.resource} }

// AuthRequestByCode implements op.Storage.
func (s *resources) AuthRequestByCode(ctx context.Context, code string) (op.AuthRequest, error) {
	request, err := s.Storage.AuthRequestByCode(ctx, code)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if resource := s.asked[request.GetState()]; resource != "" {
		return forResource{request.(*storage.AuthRequest), resource}, nil
	}
	return request, nil
}

// CreateAccessToken implements op.Storage.
func (s *resources) CreateAccessToken(ctx context.Context, r op.TokenRequest) (string, time.Time, error) {
	if of, ok := r.(forResource); ok {
		r = of.AuthRequest
	}
	return s.Storage.CreateAccessToken(ctx, r)
}

// jwtClient is a client whose access tokens are JWTs.
type jwtClient struct{ op.Client }

func (jwtClient) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

// GetClientByClientID implements op.Storage.
func (s *resources) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := s.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return jwtClient{c}, nil
}

// GetPrivateClaimsFromScopes implements op.Storage: access tokens have the user's name.
func (s *resources) GetPrivateClaimsFromScopes(ctx context.Context, user, client string,
	scopes []string) (map[string]any, error) {
	var info oidc.UserInfo
	if err := s.SetUserinfoFromScopes(ctx, &info, user, client, []string{"profile"}); err != nil {
		return nil, err
	}
	return map[string]any{"preferred_username": user}, nil
}
