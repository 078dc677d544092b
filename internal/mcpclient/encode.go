package mcpclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"sandlot/internal/rawjson"
)

// largeValue is the size in bytes from which a parameter is not made compact.
const largeValue = 64 << 10

var errNoJSON = errors.New("a parameter is not valid JSON")

// encode returns a request to the server or, without an id, a notification, on one line. Parameters may have many
// megabytes: they are read once, and copied once.
func encode(id json.RawMessage, method string, params rawjson.Object) (json.RawMessage, error) {
	names, size := slices.Sorted(maps.Keys(params)), len(id)+len(method)+128
	for _, name := range names {
		size += len(name) + len(params[name]) + 16
	}
	b := append(make([]byte, 0, size), `{"jsonrpc":"2.0"`...)
	if len(id) > 0 {
		b = append(append(b, `,"id":`...), id...)
	}
	b = append(append(b, `,"method":`...), rawjson.Quote(method)...)
	for i, name := range names {
		if i == 0 {
			b = append(b, `,"params":{`...)
		} else {
			b = append(b, ',')
		}
		b = append(append(b, rawjson.Quote(name)...), ':')
		var err error
		if b, err = appendValue(b, params[name]); err != nil {
			return nil, err
		}
	}
	if len(names) > 0 {
		b = append(b, '}')
	}
	return append(b, '}'), nil
}

// appendValue appends a value without line breaks.
func appendValue(b []byte, value json.RawMessage) ([]byte, error) {
	switch {
	case value == nil:
		return append(b, "null"...), nil
	case !rawjson.Valid(value):
		return nil, errNoJSON
	case len(value) >= largeValue && bytes.IndexByte(value, '\n') < 0 && bytes.IndexByte(value, '\r') < 0:
		return append(b, value...), nil
	}
	compact := bytes.NewBuffer(b)
	err := json.Compact(compact, value)
	return compact.Bytes(), err
}
