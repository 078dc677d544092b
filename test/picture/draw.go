package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// The measures of the picture, in pixels. Each run of text has its length in the file, so that every font fits.
const (
	width   = 800
	columns = 95
	cell    = 7.8 // the width of a character
	row     = 19
	left    = 28
	top     = 66 // the base line of the first row
)

// A span is text in one style. Its column counts from the line's beginning.
type span struct {
	column      int
	text, class string
}

// A line is a row of the terminal.
type line struct {
	dot   bool // a call begins here
	bar   bool // the line is a part of the call above
	spans []span
}

func called(tool, args string) line {
	l := line{dot: true, spans: []span{{2, tool, "tool"}}}
	if args != "" {
		l.spans = append(l.spans, span{2 + len(tool) + 2, args, "dim"})
	}
	return l
}

// code is a line of a cell. Its comment has a style of its own.
func code(text string) line {
	l := line{bar: true}
	before, comment, found := strings.Cut(text, "# ")
	if trimmed := strings.TrimRight(before, " "); trimmed != "" {
		indent := len(trimmed) - len(strings.TrimLeft(trimmed, " "))
		l.spans = append(l.spans, span{4 + indent, trimmed[indent:], "code"})
	}
	if found {
		l.spans = append(l.spans, span{4 + len(before), "# " + comment, "dim"})
	}
	return l
}

// answers breaks a line of a result between words, where it is longer than the window.
func answers(text string) []line {
	var lines []line
	now := ""
	for _, word := range strings.Fields(text) {
		if now != "" && len(now)+1+len(word) > columns-4 {
			lines = append(lines, line{bar: true, spans: []span{{4, now, "out"}}})
			now = ""
		}
		now = strings.TrimSpace(now + " " + word)
	}
	return append(lines, line{bar: true, spans: []span{{4, now, "out"}}})
}

func typed(command string) line {
	return line{spans: []span{{0, "$", "prompt"}, {2, command, "code"}}}
}

// The window is dark on pages of either colour; its border separates it from a dark one.
const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>An agent's calls in a terminal</title>
<style>
text { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.code { fill: #e6edf3 } .out { fill: #7ee787 } .dim { fill: #8b949e } .prompt { fill: #7ee787; font-weight: bold }
.tool { fill: #79c0ff; font-weight: bold } .title { fill: #8b949e; text-anchor: middle }
</style>
<rect x="0.5" y="0.5" width="%d" height="%d" rx="10" fill="#0d1117" stroke="#3d444d"/>
<path d="M1 36V10.5A9.5 9.5 0 0 1 10.5 1H%dA9.5 9.5 0 0 1 %d 10.5V36Z" fill="#1c2129"/>
<circle cx="20" cy="18.5" r="6" fill="#ff5f57"/>
<circle cx="40" cy="18.5" r="6" fill="#febc2e"/>
<circle cx="60" cy="18.5" r="6" fill="#28c840"/>
<text class="title" x="%d" y="23">an agent's calls, over MCP</text>
`

// draw makes the SVG file.
func draw(lines []line) []byte {
	height := top + row*len(lines) + row/2
	var b bytes.Buffer
	fmt.Fprintf(&b, head, width, height, width-1, height-1, width-11, width-1, width/2)
	for i, l := range lines {
		y := top + i*row
		if l.dot {
			fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4" fill="#79c0ff"/>`+"\n", left+4, y-5)
		}
		if l.bar {
			fmt.Fprintf(&b, `<path d="M%d %dv%d" stroke="#3d444d"/>`+"\n", left+4, y-15, row)
		}
		for _, s := range l.spans {
			fmt.Fprintf(&b, `<text class="%s" x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs">`,
				s.class, left+float64(s.column)*cell, y, float64(len(s.text))*cell)
			_ = xml.EscapeText(&b, []byte(s.text))
			b.WriteString("</text>\n")
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
