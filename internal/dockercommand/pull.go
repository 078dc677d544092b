package dockercommand

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"
)

// Pull makes a daemon pull an image, with the credentials of the docker command. Progress gets how far that is: in words,
// and in bytes of the layers whose size the daemon has said.
func Pull(ctx context.Context, daemon *client.Client, name reference.Named,
	progress func(step string, done, total int64)) error {
	auth, err := RegistryAuth(ctx, name)
	if err != nil {
		return err
	}
	answer, err := daemon.ImagePull(ctx, name.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer answer.Close()
	last, layers := "", layerSizes{}
	for m, err := range answer.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		if p := m.Progress; p != nil && m.Status == "Downloading" {
			layers[m.ID] = [2]int64{p.Current, p.Total}
		} else if l := layers[m.ID]; l[1] > 0 { // it is complete
			layers[m.ID] = [2]int64{l[1], l[1]}
		}
		line := fmt.Sprintf("getting the image %s: %s", reference.FamiliarString(name), layers)
		if done, total := layers.sum(); line != last {
			progress(line, done, total)
			last = line
		}
	}
	return nil
}

// layerSizes has how much of each layer of an image was downloaded, and how much it has, in bytes.
type layerSizes map[string][2]int64

// sum returns the bytes of all layers, as far as the daemon has said them.
func (all layerSizes) sum() (done, total int64) {
	for _, l := range all {
		done, total = done+l[0], total+l[1]
	}
	return done, total
}

// String returns the sum in words.
func (all layerSizes) String() string {
	done, total := all.sum()
	if total <= 0 {
		return "asking its registry"
	}
	return fmt.Sprintf("%d of %d MB", done>>20, (total+1<<20-1)>>20)
}
