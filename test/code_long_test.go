package test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// longJob is how long the jobs of TestCodeToolsLongJob run; SANDLOT_LONG_JOB=30m makes them long.
func longJob(t *testing.T) time.Duration {
	text := os.Getenv("SANDLOT_LONG_JOB")
	if text == "" {
		return 9 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SANDLOT_LONG_JOB: %v", err)
	}
	return d
}

// The jobs: each calls one tool in short calls and another one in long calls, until a time, and writes a line for each
// call: when it ended, how long it took, which tool, and the code and the words of its error, with tabs between them.
// Their arguments are that time in seconds since 1970, and how many steps of 0.1 s a long call has.
var longJobs = map[string]string{
	"job.py": `import sys, threading, time
from mcp_tools import odd, ToolError
end, steps = float(sys.argv[1]), int(sys.argv[2])
def calls(tool, make):
    n = 0
    while time.time() < end:
        n, began, code, words = n + 1, time.time(), '', ''
        try:
            code = '' if make(n) else 'wrong answer'
        except ToolError as e:
            code, words = e.code, str(e)
        print(time.time(), time.time() - began, tool, code, words, sep='\t', flush=True)
        time.sleep(0.2)
def say(n): return odd.say(text=str(n)) == 'odd: %d' % n
def slow(n): return odd.slow(steps=steps) == 'done'
long = threading.Thread(target=calls, args=('slow', slow))
long.start()
calls('say', say)
long.join()
`,
	"job.mjs": `import * as odd from '/run/mcp/odd.mjs';
const end = Number(process.argv[2]), steps = Number(process.argv[3]);
const now = () => Date.now() / 1000;
const calls = async (tool, make) => {
  for (let n = 1; now() < end; n++) {
    const began = now();
    let code = '', words = '';
    try {
      code = await make(n) ? '' : 'wrong answer';
    } catch (e) {
      [code, words] = [e.code ?? e.name, e.message];
    }
    console.log([now(), now() - began, tool, code, words].join('\t'));
    await new Promise((done) => setTimeout(done, 200));
  }
};
await Promise.all([calls('say', async (n) => await odd.say({ text: String(n) }) === 'odd: ' + n),
  calls('slow', async () => await odd.slow({ steps }) === 'done')]);
`,
	"job.sh": `calls() {
  n=0
  while [ "$(date +%s)" -lt "$end" ]; do
    n=$((n+1)) code= words= began=$(date +%s.%N)
    if got=$("$@" 2>&1); then
      case "$got" in "odd: $n"|done) ;; *) code='wrong answer' words="$got" ;; esac
    else
      code="exit $?" words="$got"
    fi
    now=$(date +%s.%N)
    took=$(echo "$now $began" | awk '{ print $1 - $2 }')
    printf '%s\t%s\t%s\t%s\t%s\n' "$now" "$took" "$tool" "$code" "$words"
    sleep 0.5
  done
}
end=$1
tool=slow
calls mcp call odd slow steps:="$2" &
tool=say
say() { mcp call odd say text="$n"; }
calls say
wait
`,
}

// jobCall is a call that a job made.
type jobCall struct {
	ended, took float64 // seconds
	tool        string
	failed      string // code and words; empty: it went well
}

// jobCalls reads what a job has written.
func jobCalls(t *testing.T, text string) (all []jobCall) {
	t.Helper()
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			t.Errorf("a job wrote %q", line)
			continue
		}
		c := jobCall{tool: f[2], failed: strings.TrimPrefix(f[3]+": "+f[4], ": ")}
		c.ended, _ = strconv.ParseFloat(f[0], 64)
		c.took, _ = strconv.ParseFloat(f[1], 64)
		all = append(all, c)
	}
	return all
}

// TestCodeToolsLongJob: jobs in the background call tools for long, from each language, while the server is stopped and
// started, and killed and started. Calls that are under way fail with a word that says what is known of them; the jobs
// go on, and later calls work.
func TestCodeToolsLongJob(t *testing.T) {
	t.Parallel()
	long := longJob(t)
	s := start(t, "SANDLOT_ON_STOP=keep")
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	c.odd("odd", "plain", nil)
	end := time.Now().Add(long)
	for name, text := range longJobs {
		c.call("sandbox_write_file", args{"session_id": "home", "path": "/workspace/" + name, "content": text})
		program := map[string]string{"py": "python3", "mjs": "node", "sh": "bash"}[strings.TrimPrefix(name, "job.")]
		r := c.call("execute_command", args{"session_id": "home", "background": true, "command": fmt.Sprintf(
			"%s /workspace/%s %d %d > /workspace/%[2]s.calls 2>&1; touch /workspace/%[2]s.done", program, name,
			end.Unix(), long/time.Second)})
		if r.IsError {
			t.Fatal(r.All)
		}
	}
	time.Sleep(time.Until(end.Add(-long * 2 / 3)))
	began := time.Now()
	s.stop()
	transport.CloseIdleConnections()
	s.launch()
	t.Logf("stopped and started in %v", time.Since(began))
	time.Sleep(time.Until(end.Add(-long / 3)))
	began = time.Now()
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	t.Logf("killed and started in %v", time.Since(began))
	time.Sleep(time.Until(end.Add(long / 10))) // the last long calls
	c = s.connect(older, "", nil)
	failed := 0
	for name := range longJobs {
		until(t, name+" ends", func() bool {
			return !c.shell("home", "cat /workspace/"+name+".done").IsError
		})
		_, _, text := s.request("GET", "/v1/sessions/home/files/workspace/"+name+".calls", nil)
		failed += checkJob(t, name, jobCalls(t, text))
	}
	if failed == 0 {
		t.Error("no call was under way when the server ended")
	}
}

// endWords are what calls say that were under way when the server ended: each says whether the tool may have run.
var endWords = []string{"it is not known whether it was carried out", "the tool may have run"}

// checkJob looks at the calls of a job through two restarts, and returns how many of them failed.
func checkJob(t *testing.T, name string, all []jobCall) (failures int) {
	t.Helper()
	made, failed := map[string]int{}, map[string]int{}
	last, longest, gap, before := map[string]jobCall{}, 0.0, 0.0, 0.0
	for _, c := range all {
		made[c.tool]++
		last[c.tool] = c
		if c.failed != "" {
			failures++
			failed[c.tool+" "+c.failed]++
			if !slices.ContainsFunc(endWords, func(w string) bool { return strings.Contains(c.failed, w) }) {
				t.Errorf("%s: a call of %s failed: %s", name, c.tool, c.failed)
			}
			continue
		}
		if c.tool == "say" {
			if before > 0 {
				gap = max(gap, c.ended-before)
			}
			before, longest = c.ended, max(longest, c.took)
		}
	}
	t.Logf("%s: %v calls; the longest short call took %.2f s, and the longest time without one was %.2f s", name, made,
		longest, gap)
	for _, what := range slices.Sorted(maps.Keys(failed)) {
		t.Logf("%s: %d × %s", name, failed[what], what)
	}
	for _, tool := range []string{"say", "slow"} {
		if made[tool] < 3 || last[tool].failed != "" {
			t.Errorf("%s: the last of %d calls of %s: %q", name, made[tool], tool, last[tool].failed)
		}
	}
	if failures > 4 { // one of each tool for each end
		t.Errorf("%s: %d calls failed", name, failures)
	}
	return failures
}
