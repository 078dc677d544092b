package tool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
)

// Limits of images that models' APIs take. They count the bytes of base64: 5 MiB are 3.75 MiB of the image.
const (
	MaxImageBytes = 5 << 20 / 4 * 3
	MaxImageSide  = 8000 // pixels
)

// IsImage reports whether models take images of that media type.
func IsImage(mime string) bool { return formats[mime].name != "" }

// format is a kind of image. Config returns the image's size, and an error if the data is not a whole image.
type format struct {
	name   string
	config func(data []byte) (image.Config, error)
}

var formats = map[string]format{
	"image/png":  {"PNG", pngConfig},
	"image/jpeg": {"JPEG", jpegConfig},
	"image/gif":  {"GIF", gifConfig},
	"image/webp": {"WebP", webpConfig},
}

// CheckImage returns the media type that the data of an image has, and why models cannot take it; empty: they can.
func CheckImage(data []byte) (mime, problem string) {
	mime = imageType(data)
	f := formats[mime]
	if f.name == "" {
		return "", "it is not a PNG, JPEG, GIF or WebP"
	}
	c, err := f.config(data)
	switch {
	case err != nil:
		return mime, "it is not a whole " + f.name
	case c.Width < 1 || c.Height < 1:
		return mime, "it has no pixels"
	case max(c.Width, c.Height) > MaxImageSide:
		return mime, fmt.Sprintf("%d × %d pixels are too many to be shown: each side may have %d", c.Width, c.Height,
			MaxImageSide)
	}
	return mime, TooLarge(int64(len(data)))
}

// TooLarge returns why models cannot take an image of that many bytes; empty: they can.
func TooLarge(size int64) string {
	if size <= MaxImageBytes {
		return ""
	}
	return fmt.Sprintf("%d bytes are too many to be shown: an image may have %d", size, MaxImageBytes)
}

// imageType returns the media type that the first bytes of an image tell; empty: none of formats.
func imageType(data []byte) string {
	starts := func(with string) bool { return bytes.HasPrefix(data, []byte(with)) }
	switch {
	case starts("\x89PNG\r\n\x1a\n"):
		return "image/png"
	case starts("\xff\xd8\xff"):
		return "image/jpeg"
	case starts("GIF87a"), starts("GIF89a"):
		return "image/gif"
	case starts("RIFF") && len(data) >= 14 && string(data[8:14]) == "WEBPVP":
		return "image/webp"
	}
	return ""
}

var errNotWhole = errors.New("it is not whole")

// pngConfig reads all chunks and compares the checksums of those that decoders need: a PNG ends with the chunk IEND.
// Decoders skip what is wrong in others, such as a profile of colours, and there are such files.
func pngConfig(data []byte) (c image.Config, err error) {
	const signature, header, sum = 8, 8, 4
	if len(data) < signature {
		return c, errNotWhole
	}
	for rest, first := data[signature:], true; len(rest) >= header+sum; first = false {
		size := int64(binary.BigEndian.Uint32(rest))
		if size > int64(len(rest)-header-sum) {
			return c, errNotWhole
		}
		chunk := rest[4 : header+size]
		if needed := chunk[0]&0x20 == 0; needed && crc32.ChecksumIEEE(chunk) != binary.BigEndian.Uint32(rest[header+size:]) {
			return c, errNotWhole
		}
		switch kind, body := string(chunk[:4]), chunk[4:]; {
		case first && (kind != "IHDR" || len(body) != 13):
			return c, errNotWhole
		case first:
			c.Width, c.Height = int(binary.BigEndian.Uint32(body)), int(binary.BigEndian.Uint32(body[4:]))
		case kind == "IEND":
			return c, nil
		}
		rest = rest[header+size+sum:]
	}
	return c, errNotWhole
}

func jpegConfig(data []byte) (image.Config, error) {
	c, err := jpeg.DecodeConfig(bytes.NewReader(data))
	if err == nil && !bytes.Contains(data[len(data)/2:], []byte{0xff, 0xd9}) { // cameras add bytes after the end
		err = errNotWhole
	}
	return c, err
}

func gifConfig(data []byte) (image.Config, error) {
	c, err := gif.DecodeConfig(bytes.NewReader(data))
	if err == nil && !bytes.HasSuffix(bytes.TrimRight(data, "\x00"), []byte{0x3b}) {
		err = errNotWhole
	}
	return c, err
}

// webpConfig reads the first chunk of a WebP: its size is at another place in each of the three forms.
func webpConfig(data []byte) (c image.Config, err error) {
	if len(data) < 30 || int64(binary.LittleEndian.Uint32(data[4:]))+8 > int64(len(data)) {
		return c, errNotWhole
	}
	body := data[20:]
	switch string(data[12:16]) {
	case "VP8X":
		c.Width = 1 + (int(body[4]) | int(body[5])<<8 | int(body[6])<<16)
		c.Height = 1 + (int(body[7]) | int(body[8])<<8 | int(body[9])<<16)
	case "VP8L":
		bits := binary.LittleEndian.Uint32(body[1:])
		c.Width, c.Height = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
	case "VP8 ":
		c.Width, c.Height = int(binary.LittleEndian.Uint16(body[6:])&0x3fff), int(binary.LittleEndian.Uint16(body[8:])&0x3fff)
	default:
		return c, errNotWhole
	}
	return c, nil
}
