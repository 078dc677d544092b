package template

import (
	"context"
	"os"
	"slices"
	"time"

	"sandlot/internal/config"
)

const (
	// sweepInterval is how often removed templates are looked for.
	sweepInterval = time.Hour
	// removedAfter is how long a template has to be missing in the settings until what was built of it is removed. A
	// server that is started with other settings by mistake removes nothing.
	removedAfter = 24 * time.Hour
)

// kept is what sweep leaves.
type kept struct {
	ids   []string // of images
	names []string // of images
	// repositories are the templates', by the name of the runtime that has their images.
	repositories map[string][]string
}

// sweep removes the images that were built of templates which the settings do not have any more, and their records.
func (b *Builder) sweep(ctx context.Context) {
	k := kept{repositories: map[string][]string{}}
	known, removed := map[string]bool{}, map[string]string{} // the runtimes of removed ones, by their names
	for _, e := range b.Set.buildable() {
		d := e.definition
		runtime := b.runtimeOf(d)
		known[d.Name] = true
		k.names = append(k.names, d.Image)
		k.repositories[runtime] = append(k.repositories[runtime], repositoryOf(d.Name))
		if r, err := b.readRecord(d.Name); err == nil && !r.Removed.IsZero() { // it is back
			r.Removed = time.Time{}
			b.note(d.Name, r)
		}
	}
	for _, name := range recordNames(b.Dir) {
		r, err := b.readRecord(name)
		if err != nil {
			continue
		}
		runtime := b.runtimeOf(config.Template{Runtime: r.Runtime})
		switch {
		case known[name]:
		case r.Removed.IsZero():
			r.Removed = time.Now().UTC()
			b.note(name, r)
		case time.Since(r.Removed) >= removedAfter:
			removed[name] = runtime
			continue
		}
		k.ids = append(k.ids, r.Base, r.Image.ID)
		k.repositories[runtime] = append(k.repositories[runtime], repositoryOf(name))
	}
	swept := map[string]bool{}
	for _, rt := range b.Pool.Runtimes() {
		err := b.removeOthers(ctx, rt.Name(), k)
		if swept[rt.Name()] = err == nil; err != nil && ctx.Err() == nil {
			b.Log.Info("images of removed templates could not be looked for; they are later", "runtime", rt.Name(),
				"error", err)
		}
	}
	for name, runtime := range removed {
		if !swept[runtime] {
			continue
		}
		b.Log.Info("what was built of a template was removed: the settings have not had it for a day", "template", name)
		if err := os.Remove(b.recordPath(name)); err != nil {
			b.Log.Warn("the record of a removed template could not be removed", "template", name, "error", err)
		}
	}
}

// note writes a record that says something else of the settings.
func (b *Builder) note(name string, r record) {
	if err := b.writeRecord(name, r); err != nil {
		b.Log.Warn("the record of a template could not be written", "template", name, "error", err)
	}
}

// removeOthers removes the images that a runtime has saved, except those to keep.
func (b *Builder) removeOthers(ctx context.Context, runtime string, k kept) error {
	imager, err := b.Imager(runtime)
	if err != nil {
		return err
	}
	return imager.RemoveSaved(ctx, func(name, id string) bool {
		return !IsBuild(name) || slices.Contains(k.ids, id) || slices.Contains(k.names, name) ||
			slices.Contains(k.repositories[runtime], repositoryIn(name))
	})
}
