package app

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/oci"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/template"
)

// Templates returns all templates: the template host, with the machine's own programs, those of the settings, and
// those that can be built on request. Prepare adds to each what its programs need; nil: nothing.
func Templates(c *config.Config, log *slog.Logger, prepare func(*image.Template)) (*template.Set, error) {
	host, err := image.Host()
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the template host cannot be made of this machine: %v", err)
	}
	ready, others := []*image.Template{host}, []config.Template{}
	for _, t := range c.Templates {
		if t.Image != "" {
			others = append(others, t)
			continue
		}
		ready = append(ready, template.FromSettings(t))
	}
	if prepare != nil {
		for _, t := range ready {
			prepare(t)
		}
	}
	all := template.New(log, ready, others, true)
	if err := all.Check(c.Sessions.DefaultTemplate); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "default_template=%q: %v", c.Sessions.DefaultTemplate, err)
	}
	return all, nil
}

// openImages opens the image store of a state folder, and removes what pulls left that nobody has gone on with.
func openImages(stateDir string, log *slog.Logger) *oci.Store {
	store := oci.Open(filepath.Join(stateDir, "images"), log)
	if err := store.Clean(); err != nil {
		log.Warn("what interrupted pulls left could not be removed", "error", err)
	}
	return store
}

// imagerOf returns a function that returns what makes the images of a runtime: the runtime itself, or the store of
// this machine.
func imagerOf(p *pool.Pool, store *oci.Store) func(runtime string) (sandbox.Imager, error) {
	return func(runtime string) (sandbox.Imager, error) {
		switch rt := p.RuntimeNamed(runtime).(type) {
		case nil:
			return nil, fmt.Errorf("the runtime %s is not among the setting runtimes", runtime)
		case sandbox.Imager:
			return rt, nil
		case template.Exporter:
			return template.Store{Images: store, Exporter: rt}, nil
		default:
			return nil, fmt.Errorf("the runtime %s makes no sandboxes of images", rt.Name())
		}
	}
}
