package hub

import (
	"context"
	"path"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// etagOf returns the ETag of a file as HTTP has it; empty: its version is not known.
func etagOf(f agent.File) string {
	if f.Version == "" {
		return ""
	}
	return `"` + f.Version + `"`
}

// FileRow is one entry of a folder.
type FileRow struct {
	Name     string    `json:"name"`
	Type     string    `json:"type" jsonschema:"file, directory, symlink or other."`
	Size     int64     `json:"size" jsonschema:"Bytes."`
	Mode     uint32    `json:"mode" jsonschema:"The permission bits."`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty" jsonschema:"Where a symbolic link leads."`
	ETag     string    `json:"etag,omitempty" jsonschema:"Another one after each change. Lists have none of symbolic links."`
}

func fileRow(f agent.File, name string) FileRow {
	return FileRow{Name: strings.ToValidUTF8(name, "\uFFFD"), Type: f.Type, Size: f.Size, Mode: f.Mode,
		Modified: f.Modified.UTC(), Target: strings.ToValidUTF8(f.Target, "\uFFFD"), ETag: etagOf(f)}
}

// FolderRows is the entries of a folder.
type FolderRows struct {
	Path      string    `json:"path"`
	Files     []FileRow `json:"files"`
	Truncated bool      `json:"truncated" jsonschema:"Whether there are more."`
	Withheld  int       `json:"withheld,omitempty" jsonschema:"Entries left out, as a rule does not let you list them."`
	sessionID string
}

func (f FolderRows) session() string { return f.sessionID }

// maxFolderRows is how many entries of a folder are listed.
const maxFolderRows = 2000

// withFile calls do with a lease of the session of a file that has to exist.
func (h *Hub) withFile(ctx context.Context, p auth.Principal, f FilePath, do func(*session.Lease) error) error {
	if err := f.checkExists(); err != nil {
		return err
	}
	l, err := h.Sessions.Wake(ctx, p, string(f.SessionID))
	if err != nil {
		return err
	}
	defer l.Release()
	if err := do(l); err != nil {
		return l.Fault(ctx, err, fault.FileAccess)
	}
	return nil
}

// FolderPath is the path of a folder. It is a type of its own for operations on folders.
type FolderPath struct{ FilePath }

func (h *Hub) listFolder(ctx context.Context, p auth.Principal, f FolderPath) (rows FolderRows, err error) {
	err = h.withFile(ctx, p, f.FilePath, func(l *session.Lease) error {
		files, truncated, err := l.Agent().ListFiles(ctx, f.Path, 1, maxFolderRows)
		if err != nil {
			return err
		}
		rows = h.folderRows(ctx, p, f.FilePath, files)
		rows.Truncated, rows.sessionID = truncated, l.ID()
		return nil
	})
	return rows, err
}

// folderRows returns the rows of those files in a folder that policy lets the principal list.
func (h *Hub) folderRows(ctx context.Context, p auth.Principal, folder FilePath, files []agent.File) FolderRows {
	rows := FolderRows{Path: folder.Path, Files: []FileRow{}}
	r := h.fileRequest(policy.FileList, p, folder)
	all, own := h.indifferent(ctx, r), h.decide(r)
	for _, f := range files {
		r.Detail = path.Join(folder.Path, f.Path)
		if !all && !likeFolder(h.decide(r), own) {
			rows.Withheld++
			continue
		}
		row := fileRow(f, f.Path)
		if f.Type == "symlink" {
			row.ETag = "" // it would be the one of the link itself
		}
		rows.Files = append(rows.Files, row)
	}
	return rows
}

// likeFolder reports whether policy allows for something in a folder what it has allowed for the folder. A rule that has
// asked about the folder does not ask about what is in it.
func likeFolder(d, folder policy.Decision) bool {
	return d.Effect == policy.Allow || d.Effect == policy.Ask && folder.Effect == policy.Ask && d.Rule == folder.Rule
}

// FileState is what is known of a file without reading it.
type FileState struct {
	Path string `json:"path"`
	FileRow
	sessionID string
}

func (f FileState) session() string { return f.sessionID }

// StatPath is the path of a file of which the state is asked.
type StatPath struct{ FilePath }

func (h *Hub) statFile(ctx context.Context, p auth.Principal, f StatPath) (state FileState, err error) {
	err = h.withFile(ctx, p, f.FilePath, func(l *session.Lease) error {
		found, err := l.Agent().StatFile(ctx, f.Path)
		if err != nil {
			return err
		}
		if found.Type == "" {
			return fault.New(fault.NotFound, "File not found in sandbox: %s", fault.Name(f.Path, 4096))
		}
		state = FileState{f.Path, fileRow(found, path.Base(f.Path)), l.ID()}
		return nil
	})
	return state, err
}

func (h *Hub) makeFolder(ctx context.Context, p auth.Principal, f FolderPath) (made Removed, err error) {
	err = h.withFile(ctx, p, f.FilePath, func(l *session.Lease) error {
		made.sessionID = l.ID()
		if err := l.ReserveDisk(f.Path, 0); err != nil {
			return err
		}
		return l.Agent().MakeFolder(ctx, f.Path)
	})
	return made, err
}

// FileMove gives a file or folder another name. The path is the new one.
type FileMove struct {
	FilePath
	From    string
	Replace bool
	Holds   FileCondition // of the file that is moved
}

// detail implements detailInput.
func (m FileMove) detail(*Hub, auth.Principal) string {
	if !path.IsAbs(m.Path) { // it is refused after policy has allowed it
		return m.Path
	}
	return path.Clean(m.Path)
}

// moveFile moves a file. It is reading and removing the one, too, and a folder is all that is in it: else a move would lead
// past rules about paths.
func (h *Hub) moveFile(ctx context.Context, p auth.Principal, m FileMove) (moved Removed, err error) {
	for name, at := range map[string]*string{"from": &m.From, "to": &m.Path} {
		if !path.IsAbs(*at) {
			return moved, fault.Argument(name, "%s must be an absolute path", name)
		}
		*at = path.Clean(*at)
	}
	source := FilePath{m.SessionID, m.From}
	for _, o := range []policy.Operation{policy.FileRead, policy.FileRemove} {
		if _, err := h.authorize(ctx, h.fileRequest(o, p, source)); err != nil {
			return moved, err
		}
	}
	err = h.withFile(ctx, p, m.FilePath, func(l *session.Lease) error {
		moved.sessionID = l.ID()
		if err := h.mayMoveAll(ctx, p, l, m); err != nil {
			return err
		}
		return l.Agent().MoveFile(ctx, agent.FileMove{From: m.From, To: m.Path, Replace: m.Replace, Holds: m.Holds})
	})
	return moved, err
}

// The most of a folder that is looked at before it is moved, where there are rules about paths.
const maxMovedFiles, maxMovedDepth = 10_000, 10

// mayMoveAll returns an error if a rule may be about something in a folder that is moved.
func (h *Hub) mayMoveAll(ctx context.Context, p auth.Principal, l *session.Lease, m FileMove) error {
	from := FilePath{m.SessionID, m.From}
	acts := []struct {
		request Request
		below   string
		own     policy.Decision
	}{{request: h.fileRequest(policy.FileRead, p, from), below: m.From},
		{request: h.fileRequest(policy.FileRemove, p, from), below: m.From},
		{request: h.fileRequest(policy.FileWrite, p, m.FilePath), below: m.Path}}
	indifferent := true
	for i := range acts {
		acts[i].own = h.decide(acts[i].request)
		indifferent = indifferent && h.indifferent(ctx, acts[i].request)
	}
	if indifferent {
		return nil
	}
	found, err := l.Agent().StatFile(ctx, m.From)
	if err != nil || found.Type != "directory" {
		return err
	}
	all, truncated, err := l.Agent().ListFiles(ctx, m.From, maxMovedDepth, maxMovedFiles)
	if err != nil {
		return err
	}
	refused := fault.New(fault.Forbidden, "a rule may be about something in %s: move what is in it by itself",
		fault.Name(m.From, 4096))
	if truncated {
		return refused
	}
	for _, f := range all {
		if f.Type == "directory" && strings.Count(f.Path, "/") >= maxMovedDepth-1 {
			return refused
		}
		for _, a := range acts {
			a.request.Detail = path.Join(a.below, f.Path)
			if !likeFolder(h.decide(a.request), a.own) {
				return refused
			}
		}
	}
	return nil
}
