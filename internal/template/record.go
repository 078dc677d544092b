package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// record is the result of a build, as JSON in a file of its template.
type record struct {
	Definition string           `json:"definition"` // the hash of the settings that it was made of
	Runtime    string           `json:"runtime,omitempty"`
	Base       string           `json:"base"`    // the ID of the image that the settings name
	Content    string           `json:"content"` // hash of packages, files and Base; empty: nothing was added
	Image      sandbox.Image    `json:"image"`
	User       image.User       `json:"user"`
	Languages  []image.Language `json:"languages"`
	Built      time.Time        `json:"built"`
}

// names returns the names of the languages that were found.
func (r record) names() []string { return (&image.Template{Languages: r.Languages}).LanguageNames() }

// recordVersion is part of the hashes, so that a newer Sandlot does not use what it would make differently.
const recordVersion = 1

func hashOf(parts ...any) string {
	text, err := json.Marshal(append(parts, recordVersion))
	if err != nil {
		panic("template: " + err.Error()) // settings consist of texts and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// definitionHash returns a hash of the settings on which a record depends.
func definitionHash(d config.Template) string {
	return hashOf(d.Image, d.Packages, d.Files, d.Runtime, d.Env["PATH"], len(d.Languages) > 0)
}

// contentKey returns the hash of an image, and of the packages and files that are added to it.
func contentKey(d config.Template, base string) string {
	p := d.Packages
	for _, list := range []*[]string{&p.Pip, &p.Npm, &p.Apt} {
		*list = slices.Sorted(slices.Values(*list))
	}
	return hashOf(base, p, d.Files, d.Runtime)[:32]
}

// Used returns the templates that are made of images, by the digests of those images: of those that settings have,
// and of the ready-made ones, as records in a folder say.
func Used(dir string, settings []config.Template) map[string]string {
	b, used := Builder{Config{Dir: dir}}, map[string]string{}
	for _, d := range slices.Concat(settings, readyMadeTemplates) {
		r, err := b.readRecord(d.Name)
		if err != nil {
			continue
		}
		for _, digest := range []string{r.Base, r.Image.ID} {
			if digest != "" {
				used[digest] = d.Name
			}
		}
	}
	return used
}

func (b *Builder) recordPath(name string) string { return filepath.Join(b.Dir, name+".json") }

func (b *Builder) readRecord(name string) (r record, err error) {
	text, err := os.ReadFile(b.recordPath(name))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (b *Builder) writeRecord(name string, r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return err
	}
	path := b.recordPath(name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
