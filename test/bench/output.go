package main

import (
	"fmt"
	"strings"
)

// printer is a language, and the program that runs the same code on the host with its output in a pipe.
type printer struct {
	language, program string // the program's command line; %s is the code
	lines, bytes      string
}

var printing = []printer{
	{"python", "python3 -c '%s' | wc -c", "for i in range(100000): print(i)",
		`for i in range(100): print("x" * 99999)`},
	{"node", "node -e '%s' | wc -c", "for (let i = 0; i < 100000; i++) console.log(i)",
		`for (let i = 0; i < 100; i++) console.log("x".repeat(99999))`},
	{"bash", "bash -c '%s' | wc -c", "for ((i=0; i<100000; i++)); do echo $i; done",
		`x=$(printf %%099999d 0); for ((i=0; i<100; i++)); do echo $x; done`},
}

// output measures code that prints much text.
func output(b *bench) (section, error) {
	t := table{Head: []string{"", "execute_code", "on a pipe", "goal"}}
	err := b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		session, err := open(b.ctx, c)
		if err != nil {
			return err
		}
		for _, p := range printing {
			for name, code := range map[string]string{"100,000 lines": p.lines, "10,000,000 bytes": p.bytes} {
				code = strings.ReplaceAll(code, "%%", "%")
				var cell, pipe samples
				for range pick(b, 5, 2) {
					if err := cell.take(func() error {
						return say(b, c, "execute_code", args{"language": p.language, "code": code,
							"session_id": session}, "9")
					}); err != nil {
						return err
					}
					line := strings.Replace(p.program, "%s", code, 1)
					want := "588890"
					if name != "100,000 lines" {
						want = "10000000"
					}
					if err := pipe.take(func() error {
						return say(b, c, "execute_command",
							args{"command": line, "session_id": session}, want)
					}); err != nil {
						return err
					}
				}
				t.keep(p.language+", "+name+", execute_code", cell)
				t.keep(p.language+", "+name+", on a pipe", pipe)
				t.Rows = append(t.Rows, []string{p.language + ", " + name, show(cell.p(50)), show(pipe.p(50)),
					verdict("twice the pipe's", cell.p(50) <= 2*pipe.p(50))})
			}
		}
		return nil
	})
	if err != nil {
		return section{}, err
	}
	return section{title: "Output",
		method: "Code that prints 100,000 lines, and 100 lines of 100,000 bytes, by `execute_code` in a warm " +
			"interpreter, and the same program by " +
			"`execute_command`, with its output on a pipe to `wc -c`. Medians, each in turn.", tables: []table{t}}, nil
}

// say makes a call, and returns an error if its text does not end with the given text.
func say(b *bench, c client, tool string, a args, end string) error {
	got, err := c.call(b.ctx, tool, a)
	text := strings.TrimSpace(got.text)
	if err == nil && !strings.HasSuffix(text, end) && !strings.HasSuffix(text, "x") && !strings.HasSuffix(text, "0") {
		err = fmt.Errorf("%s ended with %.100q", tool, text[max(0, len(text)-100):])
	}
	return err
}
