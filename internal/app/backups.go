package app

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/app/restore"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
)

// maxBackups is how many backups the folder may have for another one to be made: nobody but the operator removes them.
const maxBackups = 50

// backups are the backups in the state folder. It implements hub.Backups.
type backups struct {
	c  *config.Config
	mu sync.Mutex // held while one is made
}

// MakeBackup implements hub.Backups, as `sandlot backup` does.
func (b *backups) MakeBackup(ctx context.Context) (hub.Backup, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	has, err := b.ListBackups(ctx)
	if err != nil {
		return hub.Backup{}, err
	}
	if len(has) >= maxBackups {
		return hub.Backup{}, fault.Limit("backups", len(has), maxBackups, "there are %d backups in %s, and %d are "+
			"allowed: move some elsewhere", len(has), b.folder(), maxBackups)
	}
	if err := os.MkdirAll(b.folder(), 0o700); err != nil {
		return hub.Backup{}, err
	}
	name := "backup-" + time.Now().UTC().Format("20060102T150405Z") + "-" + secret.ID()[:8] + ".db"
	file := filepath.Join(b.folder(), name)
	if err := Backup(ctx, b.c, file, false); err != nil {
		return hub.Backup{}, err
	}
	i, err := os.Stat(file)
	if err != nil {
		return hub.Backup{}, err
	}
	return backupOf(file, i), nil
}

// ListBackups implements hub.Backups.
func (b *backups) ListBackups(context.Context) ([]hub.Backup, error) {
	list := []hub.Backup{}
	entries, err := os.ReadDir(b.folder())
	if os.IsNotExist(err) {
		return list, nil
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".db") {
			continue
		}
		if i, err := e.Info(); err == nil { // else it is gone
			list = append(list, backupOf(filepath.Join(b.folder(), e.Name()), i))
		}
	}
	slices.SortFunc(list, func(a, b hub.Backup) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(a.File, b.File)) })
	return list, err
}

func (b *backups) folder() string { return restore.BackupsFolder(b.c.Server.StateDir) }

// backupOf describes the file of a backup.
func backupOf(file string, i fs.FileInfo) hub.Backup {
	return hub.Backup{File: file, Bytes: i.Size(), Time: i.ModTime().UTC()}
}
