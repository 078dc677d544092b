package builtin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"sandlot/internal/fault"
	"sandlot/internal/session"
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
	Status    string  `json:"status"` // creating, ready, running, processing, hibernated, stopped or error
	Namespace string  `json:"namespace"`
	Sandbox   string  `json:"sandbox_name"`
	Limits    Limits  `json:"limits"`
	Processes int     `json:"processes"`
	Network   Traffic `json:"network"`
	Usage     *Usage  `json:"usage,omitempty"` // nil if it has no sandbox, or the sandbox does not answer
	// Unkept are files of the machine that a session that sleeps has open, and of which there is no copy: it does not
	// wake when the machine has replaced one.
	Unkept []string `json:"unkept_files,omitempty"`
	Ports  []Port   `json:"ports"`
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
type sessionsInput struct{ SessionInput }

// target implements targeted. Without an id, the call is about all sessions.
func (in sessionsInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = in.SessionID }

func (t *Tools) getSessions(ctx context.Context, c tool.Call, in sessionsInput) (*tool.Result, error) {
	infos, err := t.Sessions.List(ctx, c.Principal, in.SessionID)
	if err != nil {
		return nil, err
	}
	rows, lines := []Session{}, []string{}
	for _, info := range infos {
		row := sessionRow(info)
		row.Ports = t.ports(info.Owner, info.ID)
		rows = append(rows, row)
		kind := ""
		if info.Home {
			kind = " (home)"
		}
		lines = append(lines, fmt.Sprintf("%s%s  %s  %s  %s  last used %s", info.ID, kind, info.Status, info.Template,
			info.Flavor.Name, row.Used))
	}
	text := cmp.Or(strings.Join(lines, "\n"), "No sessions. The first execute_code or execute_command makes one.")
	if quota := t.Sessions.QuotaText(c.Principal.ID); quota != "" && in.SessionID == "" {
		text += "\nOf your quota are in use: " + quota
	}
	return textResult(&SessionList{Sessions: rows}, text), nil
}

// sessionRow returns a session's row of the list, without its ports.
func sessionRow(i session.Info) Session {
	row := Session{ID: i.ID, Home: i.Home, Template: i.Template, Flavor: i.Flavor.Name, Created: formatTime(i.Created),
		Used: formatTime(i.Used), Status: i.Status,
		Namespace: "default", Sandbox: i.Sandbox, Limits: Limits{CPUs: i.Flavor.CPUs, MemoryMB: i.Flavor.MemoryMB},
		Network: Traffic{SentMB: megabytes(i.Traffic.Up), ReceivedMB: megabytes(i.Traffic.Down)}, Unkept: i.Unkept}
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
	Warnings
}

type stopSessionInput struct {
	SessionID string `json:"session_id"`
}

// target implements targeted.
func (in stopSessionInput) target(_ *Tools, _ tool.Call, d *tool.Detail) { d.Session = in.SessionID }

func (t *Tools) stopSession(ctx context.Context, c tool.Call, in stopSessionInput) (*tool.Result, error) {
	id := fault.Printable(in.SessionID, 80)
	ok := t.Sessions.Stop(ctx, c.Principal, in.SessionID)
	text := fmt.Sprintf("Session %s stopped successfully", id)
	if !ok {
		text = fmt.Sprintf("Session %s not found", id)
	}
	r := textResult(&SessionEnd{Success: ok, SessionID: id}, text)
	r.Session = id
	return r, nil
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
