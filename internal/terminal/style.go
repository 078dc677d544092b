package terminal

import (
	"strconv"
	"strings"
)

// colour is a colour of text or of what is behind it. 0: the terminal's own.
type colour uint32

const (
	ofPalette colour = 1 << 24 // and the number in the palette of 256
	ofRGB     colour = 2 << 24 // and the three bytes
)

// style is how a character looks.
type style struct {
	fore, back colour
	attributes uint16 // a bit for each of the numbers 1 to 9 of SGR
}

func blankOn(back colour) cell { return cell{r: ' ', style: style{back: back}} }

// set changes the style by the parameters of an SGR sequence.
func (s *style) set(parameters string) {
	fields := strings.Split(strings.ReplaceAll(parameters, ":", ";"), ";")
	for len(fields) > 0 {
		n := number(fields[0])
		fields = fields[1:]
		switch {
		case n == 0:
			*s = style{}
		case n <= 9:
			s.attributes |= 1 << n
		case n == 21 || n == 22:
			s.attributes &^= 1<<1 | 1<<2
		case n >= 23 && n <= 29:
			s.attributes &^= 1 << (n - 20)
			if n == 25 {
				s.attributes &^= 1 << 6
			}
		case n >= 30 && n <= 37:
			s.fore = ofPalette | colour(n-30)
		case n >= 40 && n <= 47:
			s.back = ofPalette | colour(n-40)
		case n >= 90 && n <= 97:
			s.fore = ofPalette | colour(n-90+8)
		case n >= 100 && n <= 107:
			s.back = ofPalette | colour(n-100+8)
		case n == 39:
			s.fore = 0
		case n == 49:
			s.back = 0
		case n == 38:
			s.fore, fields = extended(s.fore, fields)
		case n == 48:
			s.back, fields = extended(s.back, fields)
		case n == 58:
			_, fields = extended(0, fields)
		}
	}
}

// number reads a parameter; a missing or wrong one is 0.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxNumber {
		return 0
	}
	return n
}

// extended reads the colour that follows 38 or 48, and returns the parameters behind it.
func extended(was colour, fields []string) (colour, []string) {
	switch {
	case len(fields) >= 2 && fields[0] == "5":
		return ofPalette | colour(number(fields[1])&255), fields[2:]
	case len(fields) >= 5 && fields[0] == "2" && fields[1] == "": // with colons there is an empty place
		fields = append([]string{"2"}, fields[2:]...)
		fallthrough
	case len(fields) >= 4 && fields[0] == "2":
		c := ofRGB
		for i, f := range fields[1:4] {
			c |= colour(number(f)&255) << (16 - 8*i)
		}
		return c, fields[4:]
	}
	return was, nil
}

// appendTo appends the SGR sequence that makes the style.
func (s style) appendTo(b []byte) []byte {
	b = append(b, "\x1b[0"...)
	for n := 1; n <= 9; n++ {
		if s.attributes&(1<<n) != 0 {
			b = append(b, ';', byte('0'+n))
		}
	}
	b = s.fore.appendTo(b, 30)
	b = s.back.appendTo(b, 40)
	return append(b, 'm')
}

// appendTo appends the parameters of the colour; base is 30 for that of text, and 40 for that behind it.
func (c colour) appendTo(b []byte, base int64) []byte {
	n := int64(c & 0xffffff)
	switch {
	case c >= ofRGB:
		b = strconv.AppendInt(append(b, ';'), base+8, 10)
		b = append(b, ";2"...)
		for shift := 16; shift >= 0; shift -= 8 {
			b = strconv.AppendInt(append(b, ';'), n>>shift&255, 10)
		}
	case c < ofPalette:
	case n < 8:
		b = strconv.AppendInt(append(b, ';'), base+n, 10)
	case n < 16:
		b = strconv.AppendInt(append(b, ';'), base+60+n-8, 10)
	default:
		b = strconv.AppendInt(append(b, ';'), base+8, 10)
		b = strconv.AppendInt(append(b, ";5;"...), n, 10)
	}
	return b
}
