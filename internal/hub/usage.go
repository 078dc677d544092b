package hub

import (
	"cmp"
	"context"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session/usage"
)

// MaxUsageDays is for how many days usage is stored.
const MaxUsageDays = usage.KeptDays

// UsageQuery is whose usage of which days is read.
type UsageQuery struct {
	Principal string // the id or the name; empty: the one who asks. Only operators may name another.
	Days      int    // up to today; 0: 30
}

// resource implements resourceInput.
func (q UsageQuery) resource(_ *Hub, p auth.Principal) policy.Resource {
	return ofPrincipal(p, q.Principal)
}

// UsageDays is for how many days usage is read; 0: 30.
type UsageDays int

// Usage is what was used, by days and sessions.
type Usage struct {
	Days []UsageRow `json:"days"`
}

// UsageRow is what one session, or one principal, has used on one day.
type UsageRow struct {
	Day       string `json:"day" jsonschema:"In UTC, such as 2026-11-30."`
	Principal string `json:"principal"`
	// Session is missing in the rows of all users, and users of services are counted as the service.
	Session  string  `json:"session_id,omitempty" jsonschema:"Missing: of no session, or of all sessions beyond 200."`
	CPU      float64 `json:"cpu_seconds"`
	Memory   int64   `json:"memory_bytes" jsonschema:"The most that a sandbox had."`
	Disk     int64   `json:"disk_bytes" jsonschema:"The most that a session had, as far as it was measured."`
	Sent     int64   `json:"bytes_up" jsonschema:"From the sandbox to the network."`
	Received int64   `json:"bytes_down"`
	Calls    int64   `json:"calls" jsonschema:"Operations that clients requested, and that are events."`
}

func (h *Hub) readUsage(ctx context.Context, p auth.Principal, q UsageQuery) (Usage, error) {
	owner := ownerID(p, q.Principal)
	if _, known := auth.FromID(owner); !known {
		return Usage{}, fault.New(fault.NotFound, "there is no such principal")
	}
	return h.usage(ctx, owner, q.Days)
}

func (h *Hub) readAllUsage(ctx context.Context, _ auth.Principal, days UsageDays) (Usage, error) {
	return h.usage(ctx, "", int(days))
}

// usage returns the usage of a principal, or of all, the newest day first.
func (h *Hub) usage(ctx context.Context, owner string, days int) (Usage, error) {
	if days == 0 {
		days = 30
	}
	if days < 1 || days > MaxUsageDays {
		return Usage{}, fault.Argument("days", "days is %d: it has to be from 1 to %d", days, MaxUsageDays)
	}
	all, err := h.Sessions.History(ctx, owner, days)
	if err != nil {
		return Usage{}, err
	}
	list := Usage{Days: make([]UsageRow, 0, len(all))}
	for k, u := range all {
		list.Days = append(list.Days, UsageRow{Day: time.Unix(k.Day*24*60*60, 0).UTC().Format(time.DateOnly),
			Principal: k.Owner, Session: k.Session, CPU: u.CPU.Seconds(), Memory: u.Memory, Disk: u.Disk, Sent: u.Sent,
			Received: u.Received, Calls: u.Calls})
	}
	slices.SortFunc(list.Days, func(a, b UsageRow) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Session, b.Session))
	})
	return list, nil
}
