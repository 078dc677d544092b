package hub

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// FilesChange is what a face is told of a folder: all that is in it, an entry that is new or has changed, one that is gone,
// or that its session does not run.
type FilesChange struct {
	Change    string     `json:"change"` // all, put, removed or asleep
	Files     *[]FileRow `json:"files,omitempty"`
	Truncated bool       `json:"truncated,omitempty"`
	Withheld  int        `json:"withheld,omitempty"`
	File      *FileRow   `json:"file,omitempty"`
	Name      string     `json:"name,omitempty"`
}

const changeAsleep = "asleep"

// maxFolderWatches is how many folders one principal watches at once.
const maxFolderWatches = 16

const (
	folderWait = 10 * time.Second // for a change, or for a session to wake
	folderRest = 2 * time.Second  // after an answer of an agent that cannot wait, or no answer
)

// watches counts the folders that principals watch.
type watches struct {
	mu  sync.Mutex
	all map[string]int
}

func (w *watches) begin(owner string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.all[owner]; n >= maxFolderWatches {
		return fault.Limit("watched_folders", int64(n), maxFolderWatches,
			"%d folders are watched, which is the limit: close a channel first", n)
	}
	if w.all == nil {
		w.all = map[string]int{}
	}
	w.all[owner]++
	return nil
}

func (w *watches) end(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[owner]--; w.all[owner] <= 0 {
		delete(w.all, owner)
	}
}

// liveFiles watches a folder. It wakes no session, and keeps none awake.
type liveFiles struct {
	watched
	folder  FilePath
	session string
	events  *event.Subscription // nil: the server has none
	asleep  bool                // was told
	told    map[string]FileRow  // nil: nothing was told, or what was told is old
	rest    FilesChange         // what was told beside the files
	digest  []byte
	read    time.Time
}

// WatchFiles begins to watch a folder.
func (h *Hub) WatchFiles(ctx context.Context, p auth.Principal, folder FilePath) (Live, error) {
	w := watched{h, h.fileRequest(policy.FileList, p, folder)}
	if _, err := h.authorize(ctx, w.request); err != nil {
		return nil, err
	}
	if err := folder.checkExists(); err != nil {
		return nil, err
	}
	id, err := h.Sessions.Find(p, w.request.Resource.ID)
	if err != nil {
		return nil, err
	}
	if err := h.watches.begin(p.ID); err != nil {
		return nil, err
	}
	l := &liveFiles{watched: w, folder: folder, session: id}
	l.folder.SessionID = SessionID(id)
	if h.Events != nil {
		l.events = h.Events.Subscribe(event.Filter{Principal: p.ID, Session: id}, h.Events.Newest())
	}
	return l, nil
}

// Close implements Live.
func (l *liveFiles) Close() { l.hub.watches.end(l.request.Principal.ID) }

// Next implements Live.
func (l *liveFiles) Next(ctx context.Context) ([]any, error) {
	for {
		if err := l.again(ctx); err != nil {
			return nil, err
		}
		programs, err := l.hub.Sessions.Programs(l.request.Principal.ID, l.session)
		if err != nil {
			return nil, err
		}
		var out []any
		if programs.Agent == nil {
			if !l.asleep {
				l.asleep, l.told, l.digest = true, nil, nil
				return []any{FilesChange{Change: changeAsleep}}, nil
			}
			err = l.awaitEvent(ctx)
		} else {
			out, err = l.look(ctx, programs.Agent)
			if len(out) > 0 && err == nil {
				err = l.again(ctx) // waiting takes long
			}
		}
		switch {
		case l.hub.Stops():
			return nil, ErrStops
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		case len(out) > 0:
			return out, nil
		}
	}
}

// awaitEvent waits until something happens to the session, or for a time.
func (l *liveFiles) awaitEvent(ctx context.Context) error {
	if l.events == nil {
		rest(ctx, folderRest)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, folderWait)
	defer cancel()
	if _, _, err := l.events.Next(ctx); errors.Is(err, event.ErrClosed) {
		return ErrStops
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// look waits until the folder has changed, and returns what is to be told; nothing: it has not.
func (l *liveFiles) look(ctx context.Context, a *agent.Client) ([]any, error) {
	rest(ctx, readInterval-time.Since(l.read))
	list, err := a.AwaitFiles(ctx, agent.FileWatch{Path: l.folder.Path, Depth: 1, MaxEntries: maxFolderRows,
		Known: l.digest, Wait: folderWait})
	l.read = time.Now()
	if refusal, ok := errors.AsType[*agent.Refusal](err); ok {
		kind := fault.FileAccess
		if refusal.Reason == agent.NotFound {
			kind = fault.NotFound
		}
		return nil, fault.Wrap(kind, err, "%s", refusal.Message)
	}
	if err != nil { // the session falls asleep, or its agent dials again
		rest(ctx, folderRest)
		return nil, nil
	}
	l.asleep = false
	if list.Unchanged {
		return nil, nil
	}
	if list.Digest == nil {
		l.read = l.read.Add(folderRest)
	}
	l.digest = list.Digest
	rows := l.hub.folderRows(ctx, l.request.Principal, l.folder, list.Files)
	return l.differences(rows, list.Truncated), nil
}

func (l *liveFiles) differences(rows FolderRows, truncated bool) (out []any) {
	before, frame := l.told, FilesChange{Truncated: truncated, Withheld: rows.Withheld}
	anew := before == nil || frame != l.rest
	l.told, l.rest = map[string]FileRow{}, frame
	for _, f := range rows.Files {
		l.told[f.Name] = f
		if was, known := before[f.Name]; !known || was != f {
			out = append(out, FilesChange{Change: changePut, File: &f})
		}
	}
	for name := range before {
		if _, there := l.told[name]; !there {
			out = append(out, FilesChange{Change: changeRemoved, Name: name})
		}
	}
	if anew || len(out) > 64 {
		frame.Change, frame.Files = changeAll, &rows.Files
		return []any{frame}
	}
	return out
}
