package tokens

import "testing"

// The numbers are what another implementation of o200k_base (bpe-openai, in Rust) counts.
func TestCount(t *testing.T) {
	for text, want := range map[string]int{
		"":                                       0,
		"hello world":                            2,
		`{"type":"object","properties":{}}`:      9,
		"Run code in an isolated Linux sandbox.": 8,
		"Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich": 16,
		"don't 12345678\n\n\tif x:\r\n  日本語のテキスト \U0001F600":       17,
	} {
		if got := Count(text); got != want {
			t.Errorf("%q has %d tokens, want %d", text, got, want)
		}
	}
	if got, want := CountJSON(map[string]any{"type": "object", "properties": struct{}{}}), 9; got != want {
		t.Errorf("a value has %d tokens, want %d", got, want)
	}
}
