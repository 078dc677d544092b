// Package tokens counts the tokens of what models read, for tests and benchmarks. The vocabulary, o200k_base, is
// inside, so that it needs no network. No program links it: it has megabytes.
package tokens

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/tiktoken-go/tokenizer"
)

// codec is made when it is first used, as that takes some milliseconds.
var codec = sync.OnceValue(func() tokenizer.Codec {
	c, err := tokenizer.Get(tokenizer.O200kBase)
	if err != nil {
		panic(fmt.Sprintf("tokens: %v", err))
	}
	return c
})

// Count returns how many tokens a text has.
func Count(text string) int {
	n, err := codec().Count(text)
	if err != nil {
		panic(fmt.Sprintf("tokens: %v", err))
	}
	return n
}

// CountJSON returns how many tokens a value has as compact JSON, which is how answers are sent.
func CountJSON(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("tokens: %v", err))
	}
	return Count(string(b))
}
