package gvisor

import "sandlot/internal/runtime/gvisor/frozen"

// ImageKey is the key of a sealed frozen image, as it is stored.
type ImageKey = frozen.Key

// ImageKeys returns the keys of the sealed images of a state folder.
func ImageKeys(stateDir string) ([]ImageKey, error) { return frozen.ReadKeys(frozen.New(stateDir).Dir) }

// WriteImageKey replaces the key of an image of a state folder, or, without one, removes the image. No server may use
// the images.
func WriteImageKey(stateDir string, k ImageKey) error {
	return frozen.WriteKey(frozen.New(stateDir).Dir, k)
}
