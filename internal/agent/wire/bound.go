package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxParts bounds the parts of one message, at all its levels: an empty one
// takes two bytes on the wire, and a hundred times that in memory.
const maxParts = 100_000

// Unmarshal decodes a message of a sandbox. One that would take far more memory
// than its bytes is an error with ErrMessage in its chain.
func Unmarshal(b []byte, m proto.Message) error {
	if left := count(b, m.ProtoReflect().Descriptor(), maxParts); left < 0 {
		return fmt.Errorf("%w: it has more than %d parts", ErrMessage, maxParts)
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return nil
}

// count takes the fields of a message, and of those in it, from left.
func count(b []byte, d protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left // what is no message is refused when it is decoded
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return left
		}
		left--
		if f := d.Fields().ByNumber(number); f != nil && f.Message() != nil && kind == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			left = count(v, f.Message(), left)
		}
		b = b[n:]
	}
	return left
}

// Codec is Connect's protobuf with Unmarshal in the place of its own.
type Codec struct{}

// Name implements connect.Codec.
func (Codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("wire: %T is no message", v)
	}
	return proto.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (Codec) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("wire: %T is no message", v)
	}
	return Unmarshal(b, m)
}
