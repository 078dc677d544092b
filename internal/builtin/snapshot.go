package builtin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/snapshot"
	"sandlot/internal/tool"
)

// Snapshot is a snapshot in the results for its owner.
type Snapshot struct {
	Name      string  `json:"name" jsonschema:"Pass it to restore_snapshot to go back."`
	SessionID string  `json:"session_id" jsonschema:"The session that it was made of."`
	Template  string  `json:"template"`
	SizeMB    float64 `json:"size_mb" jsonschema:"How much of the disk it has."`
	Created   string  `json:"created_at" jsonschema:"When it was made."`
}

// SnapshotList is the result of list_snapshots.
type SnapshotList struct {
	Snapshots []Snapshot `json:"snapshots"`
}

// SnapshotRestored is the result of restore_snapshot.
type SnapshotRestored struct {
	SessionOutput
	Name string `json:"name" jsonschema:"The snapshot's name."`
}

// Forked is the result of fork_session.
type Forked struct {
	SessionID string   `json:"session_id" jsonschema:"The session that was copied, which goes on."`
	Copies    []string `json:"copies" jsonschema:"The session_ids of the copies."`
}

type snapshotInput struct {
	SessionInput
	Name string `json:"name,omitempty"`
}

// SnapshotName has the arguments, and the result, of remove_snapshot.
type SnapshotName struct {
	Name string `json:"name" jsonschema:"The snapshot's name."`
}

// RestoreInput are the arguments of restore_snapshot.
type RestoreInput struct {
	SnapshotName
	SessionID string `json:"session_id,omitempty"`
}

// target implements targeted.
func (in RestoreInput) target(t *Tools, c tool.Call, d *tool.Detail) {
	if d.Session = in.SessionID; d.Session == "" {
		d.Session = t.Snapshots.SessionOf(c.Principal, in.Name)
	}
}

func (in *RestoreInput) pin(id string) { in.SessionID = id }

// ForkInput are the arguments of fork_session.
type ForkInput struct {
	SessionInput
	Count int `json:"count,omitempty"`
}

// BeforeInput has the argument that asks for a snapshot before a call.
type BeforeInput struct {
	SnapshotBefore bool `json:"snapshot_before,omitempty"`
}

// Props implements tool.Describer.
func (BeforeInput) Props() []tool.Prop {
	return []tool.Prop{{Name: "snapshot_before", Description: "Make a snapshot of the session first, to go back with " +
		"restore_snapshot. Its name is in the result; the latest five of a session are kept."}}
}

// implies implements implying; see tool.Door.Reveal. What is copied may have secrets in its memory and its files.
func (BeforeInput) implies() []policy.Operation {
	return []policy.Operation{policy.SecretUse, policy.SnapshotCreate}
}
func (RestoreInput) implies() []policy.Operation { return []policy.Operation{policy.SecretUse} }
func (ForkInput) implies() []policy.Operation    { return []policy.Operation{policy.SecretUse} }

// snapshotBefore makes the snapshot that a call asks for, and returns its name.
func (t *Tools) snapshotBefore(ctx context.Context, c tool.Call, in BeforeInput, sessionID string) (string, error) {
	id := wantedSession(c, sessionID)
	switch {
	case !in.SnapshotBefore:
		return "", nil
	case id == "new":
		return "", fault.Argument("snapshot_before", "a new session has nothing to go back to")
	}
	s, err := t.Snapshots.Before(ctx, c.Principal, id)
	return s.Name, err
}

func snapshotRow(r snapshot.Record) Snapshot {
	return Snapshot{Name: r.Name, SessionID: r.Session, Template: r.Template, SizeMB: megabytes(uint64(r.Bytes)),
		Created: formatTime(r.Created)}
}

func (t *Tools) snapshotSession(ctx context.Context, c tool.Call, in snapshotInput) (*tool.Result, error) {
	r, err := t.Snapshots.Create(ctx, c.Principal, wantedSession(c, in.SessionID), in.Name)
	if err != nil {
		return nil, err
	}
	row := snapshotRow(r)
	return inSession(r.Session, &row, fmt.Sprintf("Snapshot %s of session %s: %.0f MB", r.Name, r.Session, row.SizeMB))
}

func (t *Tools) listSnapshots(_ context.Context, c tool.Call, _ noInput) (*tool.Result, error) {
	rows, lines := []Snapshot{}, []string{}
	for _, r := range t.Snapshots.List(c.Principal) {
		row := snapshotRow(r)
		rows = append(rows, row)
		lines = append(lines, fmt.Sprintf("%s  %s  %.0f MB  %s", row.Name, row.SessionID, row.SizeMB, row.Created))
	}
	text := cmp.Or(strings.Join(lines, "\n"), "No snapshots. snapshot_session makes one.")
	return textResult(&SnapshotList{rows}, text), nil
}

func (t *Tools) restoreSnapshot(ctx context.Context, c tool.Call, in RestoreInput) (*tool.Result, error) {
	r, err := t.Snapshots.Restore(ctx, c.Principal, in.Name, in.SessionID)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Session %s is what it was in the snapshot %s", r.Session, in.Name)
	if r.Notice != "" {
		text += ", but: " + r.Notice
	}
	return inSession(r.Session, &SnapshotRestored{Name: in.Name, SessionOutput: SessionOutput{SessionID: r.Session,
		SessionCreated: r.Created, Warnings: Warnings{Notice: r.Notice}}}, text)
}

func (t *Tools) removeSnapshot(ctx context.Context, c tool.Call, in SnapshotName) (*tool.Result, error) {
	return textResult(&in, fmt.Sprintf("Snapshot %s removed", in.Name)), t.Snapshots.Remove(ctx, c.Principal, in.Name)
}

func (t *Tools) forkSession(ctx context.Context, c tool.Call, in ForkInput) (*tool.Result, error) {
	id, copies, err := t.Snapshots.Fork(ctx, c.Principal, wantedSession(c, in.SessionID), max(in.Count, 1))
	if err != nil {
		return nil, err
	}
	return inSession(id, &Forked{id, copies}, fmt.Sprintf("Copies of session %s: %s", id, strings.Join(copies, ", ")))
}

// inSession returns a result of a call that was about a session.
func inSession(id string, fields any, text string) (*tool.Result, error) {
	return &tool.Result{Fields: fields, Session: id, Content: []tool.Content{tool.Text(text)}}, nil
}
