// Package inventory owns what is done with the images of a state folder: which there are and what uses each, removing
// what nothing uses, and the pulls that a server makes on request.
package inventory

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/oci"
	"sandlot/internal/template"
)

// Uses are the uses of images by templates.
type Uses struct {
	Named map[string]string // the images that templates name, by the templates' names
	Built map[string]string // the templates that are made of images, by the images' digests
}

// Inventory is the images of a state folder. Several processes may have one of the same folder.
type Inventory struct {
	Store *oci.Store
	Uses  func() Uses // as they are now
	// Since is when the server that runs on the folder started; zero: none runs.
	Since time.Time
}

// Image is an image of the store, and what uses it.
type Image struct {
	oci.Image
	// UsedBy are names of templates.
	UsedBy []string `json:"used_by" jsonschema:"The templates that name it, or are made of it: while there is one, it cannot be removed."`
}

// List returns the images, sorted by name. Size is 0 where an image is damaged.
func (i *Inventory) List() ([]Image, error) {
	all, err := i.Store.List()
	if err != nil {
		return nil, err
	}
	uses, list := i.Uses(), make([]Image, 0, len(all))
	named := map[string][]string{} // by digests and names of images
	for name, ref := range uses.Named {
		if of, there, err := i.Store.Find(ref); err == nil && there {
			key := of.Digest + " " + of.Name
			named[key] = append(named[key], name)
		}
	}
	for _, one := range all {
		by := slices.Clone(named[one.Digest+" "+one.Name])
		if name := uses.Built[one.Digest]; name != "" && !slices.Contains(by, name) {
			by = append(by, name)
		}
		slices.Sort(by)
		list = append(list, Image{one, append([]string{}, by...)})
	}
	return list, nil
}

// Remove removes an image by its name or digest, as oci.Store.Remove does, unless a template uses it.
func (i *Inventory) Remove(ctx context.Context, ref string) (oci.Image, error) {
	return i.Store.Remove(ctx, ref, i.usedBy(i.Uses()))
}

// usedBy returns a function that says which template is made of an image, by that name, or by any if that is the last
// one.
func (i *Inventory) usedBy(uses Uses) func(of oci.Image, last bool) string {
	return func(image oci.Image, last bool) string {
		if name := uses.Built[image.Digest]; name != "" && last {
			return "the template " + name
		}
		for name, ref := range uses.Named {
			of, there, err := i.Store.Find(ref)
			if err != nil || !there || of.Digest != image.Digest {
				continue
			}
			if last || of.Name == image.Name && of.Name != "" && ref != image.Digest {
				return "the template " + name
			}
		}
		return ""
	}
}

// Prune removes images without a name, earlier builds of templates, and what interrupted pulls left. It returns the
// bytes that it has freed.
func (i *Inventory) Prune(ctx context.Context) (freed int64, err error) {
	uses := i.Uses()
	// A template of the running server may be made of an image that has lost its name.
	return i.Store.Prune(ctx, func(one oci.Image) bool {
		return one.Name != "" && !template.IsBuild(one.Name) || uses.Built[one.Digest] != "" ||
			!i.Since.IsZero() && !one.Used.Before(i.Since.Add(-oci.UsedInterval))
	})
}
