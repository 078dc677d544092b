package servers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
)

// TestURIsStay: a server does not take another one's URI by announcing it, nor
// one of Sandlot's.
func TestURIsStay(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	old := own(servers, P, "old", "aaaaaa", spec.Configured{})
	good := own(servers, P, "good", "bbbbbb", spec.Configured{})
	resources := func(uris ...string) (o catalog.Offer) {
		for _, u := range uris {
			o.Resources = append(o.Resources, json.RawMessage(fmt.Sprintf(`{"uri":%q,"name":"n"}`, u)))
			o.Templates = append(o.Templates, json.RawMessage(fmt.Sprintf(`{"uriTemplate":%q,"name":"n"}`, u+"{x}")))
		}
		return o
	}
	if err := servers.publish(good, 0, resources("memo://1"), true); err != nil {
		t.Fatal(err)
	}
	if err := servers.publish(old, 0,
		resources("memo://1", "sandlot://sessions/", "SANDLOT:x", "ext+bbbbbb:memo://1", "{"),
		true); err != nil {
		t.Fatal(err)
	}
	v := servers.viewOf(P)
	if s, remote := v.Resource("memo://1", (*server).offersResources); s != good || remote != "memo://1" {
		t.Errorf("memo://1 is %v's %s", s, remote)
	}
	if s, remote := v.Resource("ext+aaaaaa:memo://1", (*server).offersResources); s != old || remote != "memo://1" {
		t.Errorf("the other one is %v's %s", s, remote)
	}
	for _, i := range append(servers.Resources(P), servers.Templates(P)...) {
		if strings.HasPrefix(strings.ToLower(i.Key), "sandlot:") || strings.HasPrefix(i.Key,
			"{{") || strings.HasPrefix(i.Key, "ext+bbbbbb") {
			t.Errorf("%s is offered", i.Key)
		}
	}
	if len(old.rec.Catalog.Omissions) < 6 {
		t.Errorf("left out: %q", old.rec.Catalog.Omissions)
	}
}

// TestDefinitionsAreBounded: of all servers of one principal together.
func TestDefinitionsAreBounded(t *testing.T) {
	servers := newServers(t, &memStore{}, nil)
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf(`{"name":"t%d","inputSchema":{"type":"object","x":%q}}`, i,
			strings.Repeat("x", 250<<10)))
	}
	total := 0
	for k := range 5 {
		s := own(servers, P, fmt.Sprint("s", k), fmt.Sprintf("id%04d", k), spec.Configured{})
		if err := servers.publish(s, 0, offer(all...), true); err != nil {
			t.Fatal(err)
		}
		total += s.rec.Catalog.Size()
	}
	if total > catalog.MaxCatalogs+catalog.MaxCatalog {
		t.Errorf("%d MiB are held", total>>20)
	}
}

// offer is what a server with these tools says.
func offer(tools ...string) (o catalog.Offer) {
	for _, t := range tools {
		o.Tools = append(o.Tools, json.RawMessage(t))
	}
	return o
}
