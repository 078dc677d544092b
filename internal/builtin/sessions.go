package builtin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/session/property"
	"sandlot/internal/tool"
	"sandlot/internal/volume"
)

// SessionList is the result of get_sessions.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// Session is a session in the results for its owner.
type Session struct {
	ID        string  `json:"session_id"`
	Home      bool    `json:"home"`
	Template  string  `json:"template"`
	Flavor    string  `json:"flavor"`
	Created   string  `json:"created_at"`
	Used      string  `json:"last_accessed"`
	Status    string  `json:"status"` // creating, ready, running, processing, hibernated, paused, stopped or error
	Namespace string  `json:"namespace"`
	Sandbox   string  `json:"sandbox_name"`
	Limits    Limits  `json:"limits"`
	Processes int     `json:"processes"`
	Network   Traffic `json:"network"`
	Usage     *Usage  `json:"usage,omitempty"` // nil if it has no sandbox, or the sandbox does not answer
	// Unkept are files of the machine that a session that sleeps has open, and that have no copy: it does not
	// wake when the machine has replaced one.
	Unkept []string `json:"unkept_files,omitempty"`
	Ports  []Port   `json:"ports"`
	Life
	Parent *session.Parent `json:"parent,omitempty"` // nil: it is no copy
}

// Life is what users set of a session, and whether it is paused.
type Life struct {
	Name     string            `json:"name,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	PausedBy string            `json:"paused_by,omitempty" jsonschema:"Who paused it: user, operator, or end (ends_at)."`
	PausedAt string            `json:"paused_at,omitempty"`
	EndsAt   string            `json:"ends_at,omitempty" jsonschema:"When its life ends."`
	OnEnd    string            `json:"on_end,omitempty" jsonschema:"What happens then: stop or pause."`
}

// LifeOf returns what users have set of a session.
func LifeOf(r session.Record) Life {
	l := Life{Name: r.Name, Labels: r.Labels, PausedBy: r.PausedFor(), OnEnd: string(r.OnEnd)}
	if !r.EndsAt.IsZero() {
		l.EndsAt = formatTime(r.EndsAt)
	}
	if r.PausedBy != "" {
		l.PausedAt = formatTime(r.PausedAt)
	}
	return l
}

// Limits are the limits of a session.
type Limits struct {
	CPUs      float64 `json:"cpus"`
	MemoryMB  int     `json:"memory_mb"`
	NetworkMB float64 `json:"network_mb,omitempty"` // sent and received together; 0: no limit
}

// Traffic is what a session sent and received.
type Traffic struct {
	SentMB     float64 `json:"sent_mb"`
	ReceivedMB float64 `json:"received_mb"`
	// Access is how programs reach the network: "iptables", "nftables" or "proxy". Empty if that is not known.
	Access string `json:"access,omitempty"`
}

// Usage is what a session's sandbox uses.
type Usage struct {
	MemoryMB   float64 `json:"memory_mb"`
	CPUSeconds float64 `json:"cpu_seconds"`
	DiskMB     float64 `json:"disk_mb"`
}

// sessionsInput are the arguments of get_sessions.
type sessionsInput struct {
	SessionInput
	Labels []string `json:"labels,omitempty"`
}

// target implements targeted. Without an id, the call is about all sessions.
func (in sessionsInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = in.SessionID }

func (t *Tools) getSessions(ctx context.Context, c tool.Call, in sessionsInput) (*tool.Result, error) {
	infos, err := t.Sessions.List(ctx, c.Principal, in.SessionID)
	if err != nil {
		return nil, err
	}
	for _, l := range in.Labels {
		if key, _ := property.Label(l); key == "" {
			return nil, fault.Argument("labels", "a label is KEY=VALUE, or KEY for any value")
		}
	}
	rows, lines := []Session{}, []string{}
	for _, info := range infos {
		if !property.Matches(info.Labels, in.Labels) {
			continue
		}
		row := sessionRow(info)
		row.Ports = t.ports(info.Owner, info.ID)
		rows = append(rows, row)
		kind := ""
		if info.Home {
			kind = " (home)"
		}
		lines = append(lines, fmt.Sprintf("%s%s  %s  %s  %s  last used %s%s", info.ID, kind, info.Status, info.Template,
			info.Flavor.Name, row.Used, row.Line()))
	}
	none := "No sessions. The first execute_code or execute_command makes one."
	if len(in.Labels) > 0 {
		none = "No session has these labels."
	}
	text := cmp.Or(strings.Join(lines, "\n"), none)
	if quota := t.Sessions.QuotaText(c.Principal.ID); quota != "" && in.SessionID == "" {
		text += "\nOf your quota are in use: " + quota
	}
	return textResult(&SessionList{Sessions: rows}, text), nil
}

// Line is the end of a session's line: what its user has set of it, and what it is a copy of, if there is anything.
func (s Session) Line() string {
	switch p := s.Parent; {
	case p == nil:
		return s.Life.line()
	case p.Snapshot != "":
		return s.Life.line() + "  made of the snapshot " + p.Snapshot
	default:
		return s.Life.line() + "  copy of " + p.Session
	}
}

func (l Life) line() (text string) {
	if l.Name != "" {
		text += "  name " + l.Name
	}
	for _, key := range slices.Sorted(maps.Keys(l.Labels)) {
		text += "  " + key + "=" + l.Labels[key]
	}
	if l.PausedBy != "" {
		text += fmt.Sprintf("  paused at %s (%s)", l.PausedAt, l.PausedBy)
	}
	if l.EndsAt != "" {
		text += fmt.Sprintf("  ends at %s (%s)", l.EndsAt, l.OnEnd)
	}
	return text
}

// sessionRow returns a session's row of the list, without its ports.
func sessionRow(i session.Info) Session {
	row := Session{ID: i.ID, Home: i.Home, Template: i.Template, Flavor: i.Flavor.Name, Created: formatTime(i.Created),
		Used: formatTime(i.Used), Status: i.Status,
		Namespace: "default", Sandbox: i.Sandbox, Limits: Limits{CPUs: i.Flavor.CPUs, MemoryMB: i.Flavor.MemoryMB},
		Network: Traffic{SentMB: megabytes(i.Traffic.Up), ReceivedMB: megabytes(i.Traffic.Down)}, Unkept: i.Unkept,
		Life: LifeOf(i.Record)}
	if i.Parent != (session.Parent{}) {
		row.Parent = &i.Parent
	}
	if i.MaxBytes > 0 {
		row.Limits.NetworkMB = megabytes(uint64(i.MaxBytes))
	}
	if u := i.Usage; u != nil {
		row.Processes, row.Network.Access = u.Processes, u.Network
		row.Usage = &Usage{MemoryMB: megabytes(u.MemoryBytes), CPUSeconds: float64(u.CPU.Microseconds()) / 1e6,
			DiskMB: megabytes(u.DiskBytes)}
	}
	return row
}

// megabytes converts bytes to megabytes, rounded down to whole kilobytes.
func megabytes(bytes uint64) float64 { return float64(bytes>>10) / 1024 }

// SessionEnd is the result of stop_session.
type SessionEnd struct {
	Success   bool   `json:"success" jsonschema:"False when there is no such session."`
	SessionID string `json:"session_id" jsonschema:"The session."`
	Paused    bool   `json:"paused,omitempty" jsonschema:"It was paused, and not ended."`
	Warnings
}

type stopSessionInput struct {
	SessionID string `json:"session_id"`
	Pause     bool   `json:"pause,omitempty"`
}

// target implements targeted.
func (in stopSessionInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = in.SessionID }

func (in *stopSessionInput) pin(id string) { in.SessionID = id }

// implies implements implying.
func (stopSessionInput) implies() []policy.Operation { return []policy.Operation{policy.SessionPause} }

func (t *Tools) stopSession(ctx context.Context, c tool.Call, in stopSessionInput) (*tool.Result, error) {
	if in.Pause {
		return t.pauseSession(ctx, c, in.SessionID)
	}
	id := fault.Printable(in.SessionID, 80)
	if found, err := t.Sessions.Find(c.Principal, in.SessionID); err == nil && id != "home" {
		id = found // it may be a name
	}
	ok, err := t.Sessions.End(ctx, c.Principal, in.SessionID)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Session %s stopped successfully", id)
	if !ok {
		text = fmt.Sprintf("Session %s not found", id)
	}
	r := textResult(&SessionEnd{Success: ok, SessionID: id}, text)
	r.Session = id
	return r, nil
}

func (t *Tools) pauseSession(ctx context.Context, c tool.Call, id string) (*tool.Result, error) {
	err := c.May(ctx, policy.SessionPause, "", tool.Question{Message: "May an agent pause this session?\n" +
		spec.ExactCommandLine([]string{id})})
	if err != nil {
		return nil, err
	}
	i, err := t.Sessions.Pause(ctx, c.Principal, id)
	if err != nil {
		return nil, err
	}
	return inSession(i.ID, &SessionEnd{Success: true, SessionID: i.ID, Paused: true},
		fmt.Sprintf("Session %s is paused: nothing wakes it before resume_session", i.ID))
}

// SessionResumed is the result of resume_session.
type SessionResumed struct {
	SessionID string `json:"session_id" jsonschema:"The session."`
	Status    string `json:"status" jsonschema:"What it is now, as in get_sessions."`
	Warnings
}

type resumeSessionInput struct {
	SessionID string `json:"session_id"`
}

// target implements targeted.
func (in resumeSessionInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = in.SessionID }

func (in *resumeSessionInput) pin(id string) { in.SessionID = id }

func (t *Tools) resumeSession(ctx context.Context, c tool.Call, in resumeSessionInput) (*tool.Result, error) {
	i, notice, err := t.Sessions.Resume(ctx, c.Principal, in.SessionID)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("Session %s goes on: it is %s", i.ID, i.Status)
	if notice != "" {
		text += ". " + notice
	}
	return inSession(i.ID, &SessionResumed{i.ID, i.Status, Warnings{Notice: notice}}, text)
}

// VolumeList is the result of get_volume_path.
type VolumeList struct {
	Volumes []Volume `json:"volume_mappings"`
}

// Volume is a shared folder.
type Volume struct {
	HostPath      string `json:"host_path"`
	ContainerPath string `json:"container_path"`
	ReadOnly      bool   `json:"read_only"`
	// The following are nil if the folder is not measured.
	UsedMB  *int64 `json:"used_mb,omitempty"`
	LimitMB *int64 `json:"limit_mb,omitempty"`
	Full    *bool  `json:"full,omitempty"`
}

func (t *Tools) getVolumePath(context.Context, tool.Call, noInput) (*tool.Result, error) {
	rows, lines := []Volume{}, []string{}
	var all []volume.Usage
	if t.Volumes != nil {
		all = t.Volumes()
	}
	for _, v := range all {
		row := Volume{HostPath: v.Source, ContainerPath: v.Target, ReadOnly: v.ReadOnly || v.Full}
		used, limit := int64(v.UsedBytes>>20), int64(v.LimitBytes>>20)
		line := fmt.Sprintf("%s -> %s", v.Source, v.Target)
		if v.Measured {
			row.UsedMB, row.LimitMB, row.Full = &used, &limit, &v.Full
		}
		if v.Full {
			line += " (" + readOnlyReason(v) + ")"
		}
		rows, lines = append(rows, row), append(lines, line)
	}
	text := cmp.Or(strings.Join(lines, "\n"), "No shared folders are set.")
	return textResult(&VolumeList{Volumes: rows}, text), nil
}

// readOnlyReason returns a text on why a shared folder is read-only now, and until when.
func readOnlyReason(v volume.Usage) string {
	switch v.Reason {
	case volume.Deep:
		return "folders in it are too deep, or move too fast, to be measured; it can only be read until they are " +
			"removed on the host"
	case volume.Closed:
		return "folders in it cannot be read by the server, so that it cannot be measured; " +
			"it can only be read until they can (chmod u+rx on the host)"
	case volume.Slow:
		return "it could not be measured in time; it can only be read until it is: fewer files are quicker"
	case volume.Disk:
		return "its disk is nearly full; it can only be read until there is room on the disk of the host"
	}
	return fmt.Sprintf("full: %d of %d MB; it can only be read until something in it is removed on the host",
		v.UsedBytes>>20, v.LimitBytes>>20)
}
