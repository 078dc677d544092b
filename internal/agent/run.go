package agent

import (
	"cmp"
	"context"
	"time"

	"sandlot/proto/agentv1"
)

// Observer gets the events of a command or a cell of code while it runs. An error of one of its
// functions ends the run. A function may be nil.
type Observer struct {
	// Output is called with parts of the output, in the order of writing.
	Output func([]byte) error
	// Waiting is called, once a second, while another cell runs in the interpreter, with how long
	// that cell has run.
	Waiting func(time.Duration) error
}

// maxEvents bounds the events of a run: it is more than an agent sends in the longest call.
const maxEvents = 200_000

// events returns a function that passes the events of a run to the observer.
func (o Observer) events() func(*agentv1.RunEvent) error {
	n := 0
	return func(e *agentv1.RunEvent) error {
		if n++; n > maxEvents {
			return ErrProtocol
		}
		switch k := e.Event.(type) {
		case *agentv1.RunEvent_Output:
			if o.Output != nil {
				return o.Output(k.Output.GetData())
			}
			return nil
		case *agentv1.RunEvent_Waiting:
			if o.Waiting != nil {
				return o.Waiting(duration(k.Waiting.GetRunningForMicros(), time.Microsecond))
			}
			return nil
		}
		return ErrProtocol
	}
}

// InlineBounds bounds how many characters of each output a result contains: of its beginning, and of
// its end. A byte that is not UTF-8 counts as one character.
type InlineBounds struct{ Head, Tail int }

func (i InlineBounds) message() *agentv1.Bounds {
	return &agentv1.Bounds{HeadChars: uint32(i.Head), TailChars: uint32(i.Tail)}
}

// Exec is a command to run to its end.
type Exec struct {
	Command
	Stdin   []byte
	Timeout time.Duration // 0: none
	Inline  InlineBounds
	Tag     string // stands for the command in calls of tools; see Caller
}

// ExecResult is how a command ended.
type ExecResult struct {
	ExitCode       int // 128+n after signal n; 124 after the timeout
	TimedOut       bool
	KilledBy       string // the limit that it was killed for, as in Process
	Stdout, Stderr Output
	Merged         *Output // both in the order of time, as far as that is known; nil: one of them is empty, or nothing is known
	Duration       time.Duration
}

// Exec runs a command to its end. When ctx ends, the command is stopped.
//
// Commands and cells use run streams and not Connect's server streaming, which cost about 1 ms more for each
// call on two cores: headers, chunk sizes, envelopes and trailers are five or six small writes, and in gVisor
// each one is a system call and a wake-up. On a run stream, a call without live output is one write in each
// direction. The price is a second way to make a call, with errors mapped by hand.
func (c *Client) Exec(ctx context.Context, x Exec, o Observer) (*ExecResult, error) {
	request := &agentv1.ExecRequest{Command: x.Message(), Stdin: x.Stdin,
		TimeoutMillis: uint64(x.Timeout.Milliseconds()), Bounds: x.Inline.message(), Live: o.Output != nil,
		Tag: x.Tag}
	e, err := c.run(ctx, &agentv1.RunRequest{Kind: &agentv1.RunRequest_Exec{Exec: request}}, o.events())
	if err != nil {
		return nil, err
	}
	d := e.GetExecuted()
	if d == nil {
		return nil, ErrProtocol
	}
	stdout, stdoutErr := x.Inline.checkOutput(d.Stdout)
	stderr, stderrErr := x.Inline.checkOutput(d.Stderr)
	merged, mergedErr := x.Inline.checkMerged(d.Merged)
	if err := cmp.Or(stdoutErr, stderrErr, mergedErr); err != nil {
		return nil, err
	}
	return &ExecResult{ExitCode: int(d.ExitCode), TimedOut: d.TimedOut, KilledBy: knownLimit(d.KilledBy),
		Stdout: stdout, Stderr: stderr, Merged: merged, Duration: duration(d.DurationMicros, time.Microsecond)}, nil
}

// Code is a cell of code to run to its end.
type Code struct {
	Language string
	Source   string
	Timeout  time.Duration // 0: none
	Inline   InlineBounds
	// ThroughAgent sends the cell to the agent even when there is a direct connection to the
	// driver. The result is the same: the runtime suite compares both.
	ThroughAgent bool
	Tag          string // stands for the code in calls of tools; see Caller
}

// CodeResult is how a cell ended.
type CodeResult struct {
	OK             bool
	Stdout, Stderr Output
	Merged         *Output // both in the order of time, as far as that is known; nil: one of them is empty, or nothing is known
	Value          *Output // the last expression's value as text; nil: there is none
	Rich           []Rich  // the value, or displayed values, in other forms
	Error          string  // the exception's name and message
	Traceback      string
	ExitCode       int
	TimedOut       bool
	Interrupted    bool
	StateLost      bool   // the variables are lost: the interpreter died, or had to be killed
	Reason         string // why they are lost, printable
	KilledBy       string // the limit that it was killed for, as in Process
	Duration       time.Duration
}

// Rich is a value in a form other than text, such as an image.
type Rich struct {
	MIME string // printable
	Data []byte
}

// Evaluate runs a cell to its end. When ctx ends, the cell is stopped.
func (c *Client) Evaluate(ctx context.Context, code Code, o Observer) (*CodeResult, error) {
	q := &agentv1.EvaluateRequest{Language: code.Language, Code: code.Source,
		TimeoutMillis: uint64(code.Timeout.Milliseconds()), Bounds: code.Inline.message(), Live: o.Output != nil,
		Tag: code.Tag}
	evaluate := c.evaluate
	if code.ThroughAgent {
		evaluate = c.evaluateByAgent
	}
	d, err := evaluate(ctx, q, o)
	if err != nil {
		return nil, err
	}
	return code.Inline.result(d)
}

// result checks the answer of the agent, or of a driver, and returns it as a result.
func (i InlineBounds) result(d *agentv1.EvaluateDone) (*CodeResult, error) {
	stdout, stdoutErr := i.checkOutput(d.Stdout)
	stderr, stderrErr := i.checkOutput(d.Stderr)
	value, valueErr := i.checkOutput(d.Result)
	merged, mergedErr := i.checkMerged(d.Merged)
	if err := cmp.Or(stdoutErr, stderrErr, valueErr, mergedErr); err != nil {
		return nil, err
	}
	r := &CodeResult{OK: d.Ok, Stdout: stdout, Stderr: stderr, Merged: merged, Error: i.shorten(d.Error),
		Traceback: i.shorten(d.Traceback),
		ExitCode:  int(d.ExitCode), TimedOut: d.TimedOut, Interrupted: d.Interrupted, StateLost: d.StateLost,
		Reason: line(d.Reason, 300), KilledBy: knownLimit(d.KilledBy),
		Duration: duration(d.DurationMicros, time.Microsecond)}
	if d.Result != nil {
		r.Value = &value
	}
	for _, v := range d.Rich {
		r.Rich = append(r.Rich, Rich{MIME: line(v.Mime, 100), Data: v.Data})
	}
	return r, nil
}
