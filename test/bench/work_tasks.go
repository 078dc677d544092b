package main

// task is one row of ordinary work: shell commands that run in a sandbox, in raw gVisor and on the host.
//
// $W is the folder of work, which is below /workspace in sandboxes, $IN the folder of inputs, which is read-only there,
// and $PYTHON the Python. before is not measured. run prints, as its last line, text that ends with want.
type task struct {
	name        string
	before, run string
	want        string
	calls       int    // how often run is called; 0: once
	needs       string // a program of the host, without which the row is left out
}

// printLines prints 100,000 lines, whose last one is 99999.
const printLines = `for i in range(100000): print(i)`

// smallFiles makes 3,000 files in 30 folders, reads them, and removes them.
const smallFiles = `import os, shutil
os.makedirs("small")
for d in range(30):
    os.mkdir(f"small/{d}")
    for f in range(100):
        with open(f"small/{d}/{f}.txt", "w") as o: o.write(f"{d} {f}\n")
n = sum(len(open(f"small/{d}/{f}.txt").read()) > 3 for d in range(30) for f in range(100))
shutil.rmtree("small")
print(n)`

// commits makes 300 transactions of SQLite.
const commits = `import sqlite3
c = sqlite3.connect("work.db")
c.execute("create table if not exists t (a integer, b text)")
c.execute("delete from t")
c.commit()
for i in range(300):
    c.execute("insert into t values (?, ?)", (i, "x" * 100))
    c.commit()
print(c.execute("select count(*) from t").fetchone()[0])`

// tasks are the rows, in the order in which one round runs them.
var tasks = []task{
	{name: "start of Python, 10 times", run: `for i in 1 2 3 4 5 6 7 8 9 10; do $PYTHON -c 'print(1)'; done | wc -l`,
		want: "10"},
	{name: "start of Node, 10 times", run: `for i in 1 2 3 4 5 6 7 8 9 10; do node -e 'console.log(1)'; done | wc -l`,
		want: "10"},
	{name: "import numpy and pandas", run: `PYTHONPATH=$W/site $PYTHON -c 'import numpy, pandas; print(numpy.ones(3).sum())'`,
		want: "3.0"},
	{name: "print 100,000 lines, Python", run: `$PYTHON -c '` + printLines + `'`, want: "99999"},
	{name: "print 100,000 lines, one write each (bash)", run: `for ((i=0; i<100000; i++)); do echo $i; done`,
		want: "99999"},
	{name: "`find` over /usr/lib", run: `find /usr/lib -type f | wc -l`},
	{name: "`grep -r` over /usr/include", run: `grep -rl 'define' /usr/include | wc -l`},
	{name: "3,000 small files: write, read, remove", run: `$PYTHON - << 'END'` + "\n" + smallFiles + "\nEND\n", want: "3000"},
	{name: "`git clone` of Sandlot", before: `rm -rf clone`,
		run: `git clone -q $IN/repository.git clone && git -C clone rev-list --count HEAD`},
	{name: "`git add` of its files", before: `rm -rf added && mkdir added && git -C clone archive HEAD | tar x -C added && git -C added init -q`,
		run: `git -C added add . && git -C added ls-files go.mod`, want: "go.mod"},
	{name: "`git commit` of them", before: `rm -rf added/.git && git -C added init -q && git -C added add .`,
		run: `git -C added commit -q -m all && git -C added rev-list --count HEAD`, want: "1"},
	{name: "`git status`, 5 times", run: `for i in 1 2 3 4 5; do git -C clone status --short; done; echo clean`, want: "clean"},
	{name: "`pip install` of nine wheels", before: `rm -rf pip`,
		run: `$PYTHON -m pip install -q --no-index --find-links $IN/wheels --target pip $WHEELS && ls pip | grep -c jinja2`},
	{name: "`uv pip install` of the same", before: `rm -rf uv`,
		run: `$W/site/bin/uv pip install -q --no-index --find-links $IN/wheels --python $PYTHON --target uv $WHEELS && ls uv | grep -c jinja2`},
	{name: "`npm ci` of TypeScript, Express and Zod", before: `rm -rf npm && cp -r $IN/npm npm && rm -rf npm/node_modules`,
		run: `cd npm && npm ci --loglevel=error --offline --cache $CACHE && ls node_modules | grep -c express`, needs: "npm"},
	{name: "`tsc` of Zod's sources", run: `cd types && node node_modules/typescript/bin/tsc -p . > messages || [ $? = 2 ]; ls out | grep -c index.js`,
		want: "1", needs: "npm"},
	{name: "`pytest` of Click's tests", run: `cd click && PYTHONPATH=$W/site:src $PYTHON -m pytest -q -p no:cacheprovider -o filterwarnings=default tests 2>&1 | grep -o '[0-9]* passed'`,
		want: "passed"},
	{name: "SQLite, 300 commits", run: `$PYTHON - << 'END'` + "\n" + commits + "\nEND\n", want: "300"},
	{name: "`go build` of a changed program", before: `cp -r $IN/go . && echo "// $RANDOM" >> go/main.go`,
		run: `cd go && $GO build -o hello . && ./hello`, want: "hello", needs: "go"},
	{name: "`gcc -O1` of 10 files", before: `rm -rf c && cp -r $IN/c c`,
		run: `cd c && for f in *.c; do gcc -O1 -c $f; done && gcc -o all *.o && ./all`, want: "45", needs: "gcc"},
	{name: "300 short processes", run: `for ((i=0; i<300; i++)); do /bin/true; done; echo $i`, want: "300"},
	{name: "30 commands, a call each", run: `/bin/true; echo ran`, want: "ran", calls: 30},
	{name: "a file of 256 MB: write, read", before: `rm -f big`,
		run: `dd if=/dev/zero of=big bs=1M count=256 2> /dev/null && cat big | wc -c && rm big && echo read`, want: "read"},
}

// prepare makes, in the folder of work, what the tasks use.
const prepare = `mkdir -p "$TMPDIR"
$PYTHON -m pip install -q --no-index --find-links $IN/wheels --target site numpy pandas pytest uv
tar xzf $IN/click.tar.gz && mv click-* click
cp -r $IN/npm types && cp -r $IN/npm-cache $CACHE 2> /dev/null || true
[ ! -d types ] || { cd types && npm ci --loglevel=error --offline --cache $CACHE; cd ..; }
[ -z "$GO" ] || { cp -r $IN/go . && (cd go && $GO build -o hello .); }
cp -r $IN/c c && git config --global user.name bench && git config --global user.email bench@example.com
echo prepared`
