package relay

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/tool"
)

// A call that says nothing is reported after two seconds, and then every five.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		c := &tool.Call{}
		stop := Report(c, func(p *mcp.ProgressNotificationParams) { said = append(said, p.Message) })
		time.Sleep(8 * time.Second)
		c.Progress("words")
		time.Sleep(6 * time.Second)
		stop()
		time.Sleep(time.Minute)
		want := []string{"Still running after 2 s", "Still running after 7 s", "words", "Still running after 13 s"}
		if !slices.Equal(said, want) {
			t.Errorf("%q, want %q", said, want)
		}
	})
}
