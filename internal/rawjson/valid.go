package rawjson

import "github.com/go-json-experiment/json/jsontext"

// Valid reports what json.Valid reports. It is several times as fast where strings are long.
func Valid(raw []byte) bool {
	return jsontext.Value(raw).IsValid(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}
