// Package image has the commands that get, list and remove container images.
package image

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/hub"
	"sandlot/internal/inventory"
	"sandlot/internal/oci"
)

// Images are the images that the commands are about: those of a state folder, or of a server elsewhere.
type Images struct {
	*inventory.Inventory // nil: they are a server's
	Server               *client.Client
}

// Open returns the images.
type Open func() (Images, error)

// commands are the commands of `sandlot image`.
type commands struct {
	open     Open
	out, err io.Writer
	asJSON   bool
}

// Command returns the command `sandlot image`, which prints to out, and its progress to err.
func Command(open Open, out, err io.Writer) *cobra.Command {
	p := &commands{open: open, out: out, err: err}
	c := &cobra.Command{
		Use: "image", Short: "Get, list and remove container images",
		Long: `Container images for templates: from a registry, an archive or a Docker daemon.
The images of a state folder are in its folder images. No server and no Docker is needed, and
a server that runs sees what the commands change. With --server (and a token with the role
operator) pull, list and remove are about the images of that server, which does the work.`,
		Example: "  sandlot image pull python:3.12-slim\n  sandlot image import backup.tar my-image:1\n  sandlot " +
			"image list",
	}
	c.AddCommand(p.pull(), p.importSource(), p.list(), p.remove(), p.prune())
	return c
}

// withJSON gives a command the flag --json, and the function to run.
func (p *commands) withJSON(c *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
	c.RunE = run
	c.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
	return c
}

func (p *commands) json(v any) error {
	encoder := json.NewEncoder(p.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func (p *commands) pull() *cobra.Command {
	var platform string
	c := &cobra.Command{
		Use: "pull IMAGE", Short: "Get an image from a registry", Args: cobra.ExactArgs(1),
		Long: `Get an image from its registry, unpack it and store it. IMAGE is a reference as Docker
has them: python:3.12-slim, HOST/NAME:TAG or NAME@sha256:DIGEST. Credentials come from Docker's
configuration and its helpers ("docker login"). What is there already is not downloaded again.
An interrupted pull continues where it ended.`,
		Example: "  sandlot image pull python:3.12-slim\n  sandlot image pull node:22 --platform linux/arm64",
	}
	platformFlag(c, &platform)
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		all, err := p.open()
		if err != nil {
			return err
		}
		if all.Server != nil {
			return p.pullThere(c.Context(), all.Server, hub.ImageRequest{Image: args[0], Platform: platform})
		}
		return p.addImage(all, platform, func(s *oci.Store, o oci.Options) (oci.Image, error) {
			return s.Pull(c.Context(), args[0], o)
		})
	})
}

func (p *commands) importSource() *cobra.Command {
	var platform string
	c := &cobra.Command{
		Use: "import SOURCE [NAME]", Short: "Get an image from a file, a folder or a Docker daemon",
		Args: cobra.RangeArgs(1, 2),
		Long: `Unpack an image and store it. SOURCE is a folder or archive with an OCI image layout, a file that
"docker save" wrote, a tar archive of a root file system (which needs a NAME), or
docker-daemon:IMAGE for an image of the daemon that the docker command uses. Archives may be
compressed with gzip or zstd. Without NAME the image keeps its own name.`,
		Example: "  sandlot image import saved.tar\n  sandlot image import rootfs.tar.gz my-image:1\n" +
			"  sandlot image import docker-daemon:my-image:1",
	}
	platformFlag(c, &platform)
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		all, err := p.openHere()
		if err != nil {
			return err
		}
		return p.addImage(all, platform, func(s *oci.Store, o oci.Options) (oci.Image, error) {
			return s.Import(c.Context(), args[0], strings.Join(args[1:], ""), o)
		})
	})
}

func platformFlag(c *cobra.Command, platform *string) {
	c.Flags().StringVar(platform, "platform", "", "linux/amd64 or linux/arm64 (default: this machine's)")
}

// addImage gets an image, and shows how far that is.
func (p *commands) addImage(all Images, platform string, add func(*oci.Store, oci.Options) (oci.Image, error)) error {
	show := newTransferDisplay(p.err)
	image, err := add(all.Store, oci.Options{Platform: platform, Progress: show.update})
	show.close()
	if err != nil {
		return err
	}
	if p.asJSON {
		return p.json(image)
	}
	_, err = fmt.Fprintf(p.out, "%s is ready: %s, %s, %s\n", image.Name, image.Platform, byteCount(image.Size),
		image.Digest)
	return err
}

func (p *commands) list() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the images", Args: cobra.NoArgs,
		Long: `List the images: name, digest, platform, size of the root file system, when the image was
added, when it was last used, and the templates that use it. An image without a name has lost it to a newer image.`}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		images, err := p.listImages(c.Context())
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(images)
		}
		table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "NAME\tDIGEST\tPLATFORM\tSIZE\tADDED\tUSED\tUSED BY")
		for _, i := range images {
			name := i.Name
			if name == "" {
				name = "-"
			}
			size := byteCount(i.Size)
			if i.Size == 0 {
				size = "gone: get it again"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, i.Digest[:min(len(i.Digest), 19)], i.Platform,
				size, i.Created.Local().Format(time.DateTime), i.Used.Local().Format(time.DateTime),
				cmp.Or(strings.Join(i.UsedBy, " "), "-"))
		}
		return table.Flush()
	})
}

func (p *commands) remove() *cobra.Command {
	c := &cobra.Command{Use: "remove IMAGE...", Short: "Remove images", Args: cobra.MinimumNArgs(1),
		Long: `Remove images by name, or by digest (sha256:…). Layers that other images have too are kept. An image
that a template in the settings file names is not removed, nor is an image from which a template was built.`}
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		all, err := p.open()
		if err != nil {
			return err
		}
		removed := []hub.ImageRemoved{}
		for _, ref := range args {
			one, err := all.remove(c.Context(), ref)
			if err != nil {
				return err
			}
			removed = append(removed, one)
			if !p.asJSON {
				fmt.Fprintf(p.out, "%s is removed\n", ref)
			}
		}
		if p.asJSON {
			return p.json(removed)
		}
		return nil
	})
}

// prunedImages is the JSON of image prune.
type prunedImages struct {
	FreedBytes int64 `json:"freed_bytes"`
}

func (p *commands) prune() *cobra.Command {
	c := &cobra.Command{Use: "prune",
		Short: "Remove images without a name, earlier builds, and what interrupted pulls left",
		Args:  cobra.NoArgs,
		Long: `Remove images that no longer have a name, earlier builds of templates, layers that no image has, and
downloads that were interrupted. Kept are other images with a name, images from
which a template was built, and images that a running server has used.`}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		all, err := p.openHere()
		if err != nil {
			return err
		}
		freed, err := all.Prune(c.Context())
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(prunedImages{freed})
		}
		_, err = fmt.Fprintf(p.out, "%s freed\n", byteCount(freed))
		return err
	})
}
