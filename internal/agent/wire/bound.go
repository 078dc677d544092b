package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxFields bounds the number of fields of one message, with those of nested messages: an empty
// nested message takes two bytes on the wire, and a hundred times that in memory.
const maxFields = 100_000

// Unmarshal decodes a message from a sandbox. A message with more than maxFields fields is an
// error with ErrMessage in its chain, since it might need far more memory than its bytes.
func Unmarshal(b []byte, m proto.Message) error {
	if left := countFields(b, m.ProtoReflect().Descriptor(), maxFields); left < 0 {
		return fmt.Errorf("%w: it has more than %d fields", ErrMessage, maxFields)
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return nil
}

// countFields returns left minus the number of fields of a message, with those of nested
// messages. The result is negative when there are more.
func countFields(b []byte, d protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left // an invalid message: decoding it returns the error
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return left
		}
		left--
		if f := d.Fields().ByNumber(number); f != nil && f.Message() != nil && kind == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			left = countFields(v, f.Message(), left)
		}
		b = b[n:]
	}
	return left
}

// Codec is Connect's protobuf codec, with Unmarshal in place of proto.Unmarshal.
type Codec struct{}

// Name implements connect.Codec.
func (Codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("wire: %T is not a message", v)
	}
	return proto.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (Codec) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("wire: %T is not a message", v)
	}
	return Unmarshal(b, m)
}
