package catalog

import (
	"encoding/json"
	"testing"

	"sandlot/internal/servers/spec"
)

// Code is offered all tools, and of one that is held back nothing that nobody has approved.
func TestToolsOf(t *testing.T) {
	c := Catalog{Tools: []Definition{
		{Remote: "fine", Exposed: "ext_s_fine", Raw: json.RawMessage(`{"description":"Fine."}`)},
		{Remote: "changed", Exposed: "ext_s_changed", Hash: "h", HeldBecause: "it has changed",
			Raw: json.RawMessage(`{"title":"A","description":"B","inputSchema":{"properties":{"C":{}}}}`)}}}
	for trust, want := range map[spec.Trust]string{
		spec.TrustHold: `[{"remote":"fine","key":"ext_s_fine","raw":{"description":"Fine."}},` +
			`{"remote":"changed","key":"ext_s_changed","raw":{"name":"ext_s_changed","inputSchema":{"type":"object"}},` +
			`"held":"it has changed"}]`,
		spec.TrustWarn: `[{"remote":"fine","key":"ext_s_fine","raw":{"description":"Fine."}},` +
			`{"remote":"changed","key":"ext_s_changed","raw":{"title":"A","description":"B","inputSchema":` +
			`{"properties":{"C":{}}}},"hash":"h"}]`,
	} {
		got, err := json.Marshal(ToolsOf(c, trust))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v\nwant %s", trust, got, err, want)
		}
	}
	if c.Tools[1].HeldBecause == "" {
		t.Error("the catalog was changed")
	}
}
