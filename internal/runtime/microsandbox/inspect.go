package microsandbox

import (
	"context"
	"os"
	"time"

	"sandlot/internal/runtime/specfile"
)

// Process is a living sandbox, as other programs than its server can see it.
type Process struct {
	ID          string
	Template    string
	Since       time.Time
	MemoryBytes int64
}

// Inspect lists the living sandboxes of the state folder of c, whether or not a server runs. It asks msb only if the
// folder has sandboxes.
func Inspect(ctx context.Context, c Config) (alive []Process, err error) {
	r, err := New(c)
	if err != nil {
		return nil, nil // no sandbox can be made there
	}
	defer r.Close()
	folders, err := os.ReadDir(r.sandboxesDir())
	if err != nil || len(folders) == 0 { // none, or those of another user
		return nil, nil
	}
	m, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	used, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		var rec specfile.Record
		name := machineName(f.Name())
		if m[name] != running || specfile.Read(r.sandboxDir(f.Name()), &rec) != nil {
			continue
		}
		p := Process{ID: f.Name(), Template: rec.Template, MemoryBytes: used[name].Memory}
		if info, err := f.Info(); err == nil {
			p.Since = info.ModTime()
		}
		alive = append(alive, p)
	}
	return alive, nil
}
