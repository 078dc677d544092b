package rawjson

import (
	"encoding/binary"
	"math/bits"
)

// maxDepth is how deep encoding/json reads.
const maxDepth = 10_000

// Valid reports what json.Valid reports. It is many times as fast where strings are long.
func Valid(raw []byte) bool {
	v := validator{raw: raw}
	for v.begin() {
		if over, ok := v.end(); over {
			return ok
		}
	}
	return false
}

// validator reads a JSON text. Its methods report whether what they have read is valid.
type validator struct {
	raw  []byte
	at   int
	open []byte // the brackets that were opened and not closed
}

// peek returns the next byte; 0: there is none.
func (v *validator) peek() byte {
	if v.at < len(v.raw) {
		return v.raw[v.at]
	}
	return 0
}

// peekToken returns the next byte that is no white space; 0: there is none.
func (v *validator) peekToken() byte {
	for {
		switch c := v.peek(); c {
		case ' ', '\t', '\n', '\r':
			v.at++
		default:
			return c
		}
	}
}

// take reads one byte, if it is the next one.
func (v *validator) take(c byte) bool {
	if v.at >= len(v.raw) || v.raw[v.at] != c {
		return false
	}
	v.at++
	return true
}

// begin reads a value that is no array or object, or what comes before the first such one in an array or object.
func (v *validator) begin() bool {
	for {
		switch c := v.peekToken(); c {
		case '{', '[':
			if len(v.open) == maxDepth {
				return false
			}
			v.open = append(v.open, c)
			v.at++
			switch next := v.peekToken(); {
			case next == c+2: // } is two after {, and ] after [
				return true
			case c == '{' && !v.name():
				return false
			}
		case '"':
			return v.text()
		case 't':
			return v.literal("true")
		case 'f':
			return v.literal("false")
		case 'n':
			return v.literal("null")
		default:
			return v.number()
		}
	}
}

// end reads what comes after a value, up to the next one. It reports whether there is none, and then whether all was
// valid.
func (v *validator) end() (over, ok bool) {
	for {
		c := v.peekToken()
		if len(v.open) == 0 {
			return true, v.at == len(v.raw)
		}
		switch bracket := v.open[len(v.open)-1]; {
		case c == bracket+2:
			v.open = v.open[:len(v.open)-1]
			v.at++
		case c != ',':
			return true, false
		default:
			v.at++
			if bracket == '{' && !v.name() {
				return true, false
			}
			return false, true
		}
	}
}

// name reads the name of a member, and the colon.
func (v *validator) name() bool {
	if v.peekToken() != '"' || !v.text() {
		return false
	}
	v.peekToken()
	return v.take(':')
}

func (v *validator) literal(text string) bool {
	for i := range len(text) {
		if !v.take(text[i]) {
			return false
		}
	}
	return true
}

func (v *validator) number() bool {
	v.take('-')
	if !v.take('0') && !v.digits() {
		return false
	}
	if v.take('.') && !v.digits() {
		return false
	}
	if !v.take('e') && !v.take('E') {
		return true
	}
	if !v.take('+') {
		v.take('-')
	}
	return v.digits()
}

// digits reads at least one digit.
func (v *validator) digits() bool {
	from := v.at
	for c := v.peek(); c >= '0' && c <= '9'; c = v.peek() {
		v.at++
	}
	return v.at > from
}

// text reads a string, whose first byte is a quotation mark.
func (v *validator) text() bool {
	for v.at++; ; {
		v.at += plain(v.raw[v.at:])
		switch c := v.peek(); {
		case c == '"':
			v.at++
			return true
		case c != '\\':
			return false // a control character, or the end
		}
		v.at++
		c := v.peek()
		v.at++
		switch c {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			for range 4 {
				if !isHex(v.peek()) {
					return false
				}
				v.at++
			}
		default:
			return false
		}
	}
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

// plain returns how many bytes there are before the first one that is a quotation mark, a backslash or a control
// character. It looks at eight at a time: in a word of bytes, those that are 0 are the ones from which the subtraction
// of 1 borrows, and of which the highest bit was not set before. The first one that is found is one.
func plain(raw []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(raw); i += 8 {
		w := binary.LittleEndian.Uint64(raw[i:])
		quote, slash := w^ones*'"', w^ones*'\\'
		found := ((w-ones*' ')&^w | (quote-ones)&^quote | (slash-ones)&^slash) & high
		if found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(raw) && raw[i] >= ' ' && raw[i] != '"' && raw[i] != '\\'; i++ {
	}
	return i
}
