package tasks

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// All are the tasks, by their numbers. Some that are missing need more than one client, another server or a person, and
// have tests of their own, which Elsewhere names.
var All = []Task{
	{Number: 1, Name: "a table: CSV by a file tool, pandas, a figure", Do: table},
	{Number: 2, Name: "scikit-learn: GridSearchCV with n_jobs=-1", Do: search},
	{Number: 3, Name: "FastAPI with pytest, and a link to it", Do: api},
	{Number: 4, Name: "React with Vite: create, build, serve", Long: true, Do: vite},
	{Number: 5, Name: "a library in TypeScript: vitest and tsc", Do: library},
	{Number: 6, Name: "a Go module with tests", Long: true, Do: goModule},
	{Number: 7, Name: "Rust: cargo by apt-get, a crate with tests", Long: true, Do: rust},
	{Number: 8, Name: "Git: a bare repository, a clone, a branch, push, log", Do: git},
	{Number: 9, Name: "SQLite, DuckDB and Parquet", Do: data},
	{Number: 10, Name: "PDF, Word, Excel and PowerPoint: write and read", Do: documents},
	{Number: 11, Name: "a picture with text, and OCR by tesseract", Long: true, Do: ocr},
	{Number: 13, Name: "a job of twelve seconds in the background", Do: job},
	{Number: 14, Name: "32 cells of Python, and cells of Node", Do: cells},
	{Number: 15, Name: "TypeScript as cells", Do: typescript},
	{Number: 16, Name: "dialogs: python3 -i and npm init in a terminal", Do: dialogs},
	{Number: 17, Name: "a schedule: a loop in the background", Do: schedule},
	{Number: 18, Name: "a file of a megabyte, to the sandbox and back", Do: bytes},
	{Number: 19, Name: "a project of uv", Do: uv},
	{Number: 20, Name: "a notebook: papermill and nbconvert", Long: true, Do: notebook},
	{Number: 21, Name: "a film with ffmpeg", Long: true, Do: film},
	{Number: 24, Name: "an MCP server of npm: install, call, from code", Do: server},
	{Number: 25, Name: "a snapshot, and back to it; a copy of the session", Do: snapshot},
	{Number: 29, Name: "a larger flavor", Do: flavor},
	{Number: 30, Name: "limits: memory, time, a wrong argument", Do: limits},
	{Number: 31, Name: "PostgreSQL for tests: initdb, start, psql", Long: true, Do: postgres},
	{Number: 33, Name: "release archives: tar of another owner, zip, xz", Do: archives},
	{Number: 34, Name: "users: useradd, su, a file of another owner", Do: users},
	{Number: 35, Name: "a web server in the background, curl, its log, its end", Do: web},
}

// Elsewhere names the tests of the tasks that are not in All.
var Elsewhere = map[int]string{
	12: "TestBrowser", 22: "TestNetworkAccess", 23: "TestBoundSecret", 26: "TestHibernate", 27: "TestIdsOfOthers",
	28: "TestTemplates", 32: "TestHold",
}

func table(d *Desk) {
	var b strings.Builder
	b.WriteString("day,shop,sold\n")
	for i := range 90 {
		fmt.Fprintf(&b, "2026-01-%02d,%s,%d\n", i/3+1, []string{"north", "south", "east"}[i%3], 10+i*7%31)
	}
	d.Write("sales.csv", b.String())
	d.Python(lines("import pandas as pd", "t = pd.read_csv('sales.csv', parse_dates=['day'])",
		"t.groupby('shop').sold.sum()"), `north\s+\d+`)
	a := d.Python(lines("import matplotlib.pyplot as plt", "t.pivot(index='day', columns='shop', values='sold').plot()",
		"plt.title('Sold a day'); plt.show()"), "")
	d.expect(a.Images == 1, "%d pictures", a.Images)
	d.Shell("ls /workspace", "sales.csv")
}

func search(d *Desk) {
	d.Python(lines("from sklearn.datasets import load_iris", "from sklearn.model_selection import GridSearchCV",
		"from sklearn.svm import SVC", "x, y = load_iris(return_X_y=True)",
		"g = GridSearchCV(SVC(), {'C': [0.1, 1, 10]}, n_jobs=-1).fit(x, y)", "round(g.best_score_, 2)"), `0\.9\d`)
}

func api(d *Desk) {
	d.Write("app.py", lines("from fastapi import FastAPI", "app = FastAPI()", "@app.get('/sum')",
		"def sum(a: int, b: int): return {'sum': a + b}"))
	d.Write("test_app.py", lines("from fastapi.testclient import TestClient", "from app import app",
		"def test_sum(): assert TestClient(app).get('/sum?a=2&b=3').json() == {'sum': 5}"))
	d.Shell("python3 -m pytest -q", "1 passed")
	d.Begin("exec python3 -m uvicorn app:app --port 8123", nil)
	a := d.Do("expose_port", args{"port": 8123}, "http")
	d.expect(a.Fields["listening"] == true, "nothing listens: %s", a.Text)
	d.Shell("curl -s 'localhost:8123/sum?a=20&b=22'; ps aux | grep uvicor[n] | wc -l", `"sum":42}1`)
}

func vite(d *Desk) {
	d.Shell("npm create --yes vite@6 shop -- --template react-ts </dev/null >/dev/null && cd shop && "+
		"npm install --no-audit --no-fund >/dev/null && npm run build", "built in")
	process := d.Begin("cd shop && exec npm run dev -- --port 5199", nil)
	d.Await(process, "5199", "")
	a := d.Do("expose_port", args{"port": 5199}, "http")
	d.expect(a.Fields["listening"] == true, "nothing listens: %s", a.Text)
	d.Shell("curl -s localhost:5199/src/App.tsx", "jsxDEV|useState")
}

func library(d *Desk) {
	d.Write("lib/add.ts", "export const add = (a: number, b: number): number => a + b;\n")
	d.Write("lib/add.test.ts", lines("import { expect, test } from 'vitest';", "import { add } from './add';",
		"test('add', () => { expect(add(2, 3)).toBe(5) });"))
	d.Write("lib/tsconfig.json", `{"compilerOptions": {"strict": true, "module": "nodenext", "outDir": "out", `+
		`"declaration": true, "skipLibCheck": true}, "files": ["add.ts"]}`)
	d.Shell("cd lib && tsc -p . && ls out && NO_COLOR=1 vitest run", `(?s)add.d.ts.*1 passed`)
}

func goModule(d *Desk) {
	d.Write("m/go.mod", "module example.org/m\n\ngo 1.24\n")
	d.Write("m/add.go", "package m\n\nfunc Add(a, b int) int { return a + b }\n")
	d.Write("m/add_test.go", lines("package m", "", `import "testing"`, "",
		"func TestAdd(t *testing.T) {", "if Add(2, 3) != 5 {", "t.Fatal()", "}", "}"))
	d.Shell("cd m && gofmt -w . && go vet ./... && go test ./...", `^ok\b`)
}

func rust(d *Desk) {
	d.Apt("cargo", "cargo --version", "(?m)^cargo")
	d.Shell("cargo init -q --lib shop && cd shop && printf 'pub fn sum(a: i32, b: i32) -> i32 { a + b }\\n"+
		"#[test]\\nfn sums() { assert_eq!(sum(20, 22), 42); }\\n' > src/lib.rs && cargo test -q 2>&1", "1 passed")
}

func ocr(d *Desk) {
	d.Apt("tesseract-ocr fonts-dejavu-core", "tesseract --version", "(?m)^tesseract")
	d.Python(lines("from PIL import Image, ImageDraw, ImageFont", "i = Image.new('RGB', (700, 120), 'white')",
		"f = ImageFont.truetype('/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf', 48)",
		"ImageDraw.Draw(i).text((20, 30), 'Invoice 2026-417', font=f, fill='black'); i.save('bill.png')"), "")
	d.Shell("tesseract bill.png - 2>/dev/null", "Invoice 2026-417")
}

func postgres(d *Desk) {
	d.Apt("postgresql", "ls -d /usr/lib/postgresql/*/bin", "bin")
	d.Shell("B=$(ls -d /usr/lib/postgresql/*/bin | tail -1) && install -d -o postgres /var/lib/shop && cd /var/lib/shop && "+
		"sudo -u postgres $B/initdb -D data >/dev/null && sudo -u postgres $B/pg_ctl -D data -o '-k /tmp' -l log start >/dev/null && "+
		"sudo -u postgres psql -h /tmp -qAt -c 'create table t (n int)' -c 'insert into t values (40), (2)' -c 'select sum(n) from t'", "42")
}

func git(d *Desk) {
	d.Shell(`set -e; git init -q --bare shop.git; git clone -q shop.git work 2>&1; cd work; echo 1 > a; git add a
git commit -qm first; git push -q origin HEAD; git switch -qc feature; echo 2 > b; git add b; git commit -qm second
git push -qu origin feature; git log --oneline --all --graph`, `(?s)second.*first`)
}

func data(d *Desk) {
	d.Python(lines("import duckdb, sqlite3", "c = sqlite3.connect('shop.db')",
		"c.execute('create table sold(shop text, n int)'); c.executemany('insert into sold values (?, ?)', "+
			"[('north', 2), ('south', 3), ('north', 5)]); c.commit()",
		"import pandas as pd", "t = pd.read_sql('select * from sold', c); t.to_parquet('sold.parquet')",
		"duckdb.sql(\"select shop, sum(n)::int as n from 'sold.parquet' group by shop order by shop\").fetchall()"),
		`\[\('north', 7\), \('south', 3\)\]`)
	d.Do("sandbox_read_file", args{"path": "sold.parquet", "as": "text"}, "north")
}

func documents(d *Desk) {
	d.Python(lines("from docx import Document", "w = Document(); w.add_heading('Harvest'); w.add_paragraph('Forty apples.'); "+
		"w.save('a.docx')", "from openpyxl import Workbook", "b = Workbook(); b.active.append(['apples', 40]); b.save('a.xlsx')",
		"from pptx import Presentation", "p = Presentation(); s = p.slides.add_slide(p.slide_layouts[0]); "+
			"s.shapes.title.text = 'Apples'; p.save('a.pptx')", "from reportlab.pdfgen.canvas import Canvas",
		"c = Canvas('a.pdf'); c.drawString(72, 700, 'Forty apples.'); c.save()"), "")
	for path, want := range map[string]string{"a.docx": "Forty apples", "a.xlsx": "40", "a.pptx": "Apples",
		"a.pdf": "Forty apples"} {
		d.Do("sandbox_read_file", args{"path": path, "as": "text"}, want)
	}
	a := d.Do("sandbox_read_file", args{"path": "a.docx"}, "")
	d.expect(len(a.Text) < 1000, "a document floods: %d characters", len(a.Text))
}

func job(d *Desk) {
	process := d.Begin("for i in $(seq 12); do echo step $i; sleep 1; done", nil)
	a := d.Await(process, "exit", "(?s)step 1\n.*step 12")
	d.expect(a.Fields["exit_code"] == 0.0, "it ended with %v", a.Fields["exit_code"])
}

func cells(d *Desk) {
	d.Python("n = 0", "")
	for i := range 31 {
		d.Python("n += 1; n", fmt.Sprintf(`^%d\b`, i+1))
	}
	d.Cell("node", "const a = [1, 2, 3]; a.length", `^3\b`)
	d.Cell("node", "const a = await Promise.resolve(5); a", `^5\b`)
}

func typescript(d *Desk) {
	d.Cell("typescript", lines("interface Shop { name: string; sold: number }",
		"const shops: Shop[] = [{ name: 'north', sold: 3 }, { name: 'south', sold: 4 }];",
		"shops.reduce((sum: number, s: Shop) => sum + s.sold, 0)"), `^7\b`)
	d.Cell("typescript", "enum Colour { Red, Green }\nColour[1] + shops[0].name", "Greennorth")
}

func dialogs(d *Desk) {
	python := d.Begin("python3 -i", args{"tty": true})
	d.Await(python, ">>>", ">>>")
	d.Type(python, "6 * 7\n")
	d.Await(python, "/^42/", "42")
	d.Type(python, "exit()\n")
	d.Await(python, "exit", "")
	npm := d.Begin("mkdir -p pack && cd pack && npm init", args{"tty": true})
	for _, answer := range []string{"package name", "version", "description", "entry point", "test command",
		"git repository", "keywords", "author", "license"} {
		d.Await(npm, answer, "")
		d.Type(npm, "\n")
	}
	if a := d.Await(npm, "/type:|Is this OK/", ""); strings.Contains(a.Text, "type:") { // newer ones ask that, too
		d.Type(npm, "\n")
		d.Await(npm, "/Is this OK/", "")
	}
	d.Type(npm, "yes\n")
	d.Await(npm, "exit", "")
	d.Shell("cat pack/package.json", `"name": "pack"`)
}

func schedule(d *Desk) {
	process := d.Begin("while sleep 1; do date +%s >> ticks; done", nil)
	d.Await(d.Begin("until [ \"$(wc -l < ticks)\" -ge 3 ]; do sleep 0.2; done 2>/dev/null", nil), "exit", "")
	d.Do("stop_process", args{"process_id": process}, "")
	d.Shell("wc -l < ticks", `^[3-9]\b`)
}

func bytes(d *Desk) {
	raw := make([]byte, 1<<20)
	for i := range raw {
		raw[i] = byte(i * 7 >> 3)
	}
	const part = 512 << 10
	for at := 0; at < len(raw); at += part {
		d.Do("sandbox_write_file", args{"path": "/workspace/big.bin", "encoding": "base64", "append": at > 0,
			"content": base64.StdEncoding.EncodeToString(raw[at : at+part])}, "")
	}
	d.Shell("stat -c %s big.bin", "1048576")
	a := d.Do("sandbox_read_file", args{"path": "/workspace/big.bin"}, "1048576|1 MiB|1,048,576")
	d.expect(len(a.Text) < 1000, "bytes flood: %d characters", len(a.Text))
	a = d.Do("sandbox_read_file", args{"path": "/workspace/big.bin", "encoding": "base64", "offset": 1<<20 - 300}, "")
	d.expect(strings.Contains(a.Text, base64.StdEncoding.EncodeToString(raw[1<<20-300:])), "other bytes: %.200s", a.Text)
}

func uv(d *Desk) {
	d.Shell("pip install -q uv 2>&1; uv init -q shop 2>&1 && cd shop && uv add -q tabulate 2>&1 && "+
		"uv run -q python -c 'import tabulate; print(tabulate.tabulate([[1, 2]]))'", "1  2")
}

func notebook(d *Desk) {
	d.Shell("pip install -q papermill nbconvert ipykernel 2>&1 | tail -n 3", "")
	d.Write("n.ipynb", `{"cells": [{"cell_type": "code", "execution_count": null, "id": "a", "metadata": {"tags": `+
		`["parameters"]}, "outputs": [], "source": ["n = 1"]}, {"cell_type": "code", "execution_count": null, "id": "b", `+
		`"metadata": {}, "outputs": [], "source": ["print('apples', n * 2)"]}], "metadata": {"kernelspec": {"display_name": `+
		`"p", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}`)
	d.Shell("python3 -m papermill -p n 21 n.ipynb done.ipynb >/dev/null 2>&1 && "+
		"python3 -m nbconvert --to markdown --stdout done.ipynb 2>/dev/null", "apples 42")
}

func film(d *Desk) {
	d.Shell("pip install -q imageio-ffmpeg 2>&1 | tail -n 3", "")
	d.Shell("f=$(python3 -c 'import imageio_ffmpeg as i; print(i.get_ffmpeg_exe())') && "+
		"$f -v error -f lavfi -i testsrc=d=1:s=160x120 -y a.mp4 && $f -hide_banner -i a.mp4 2>&1 | grep Duration", "00:00:01")
}

func server(d *Desk) {
	d.Session = "home"
	connected := d.Do("auto_install_and_connect_mcp", args{"name": "memory",
		"install": args{"type": "npm", "spec": "@modelcontextprotocol/server-memory"}}, "")
	create := ""
	tools, _ := connected.Fields["tools"].([]any)
	for _, t := range tools {
		if t, _ := t.(map[string]any); t["remoteName"] == "create_entities" {
			create, _ = t["toolName"].(string)
		}
	}
	d.Do(create, args{"entities": []any{args{"name": "apple", "entityType": "fruit",
		"observations": []any{"red and round"}}}}, "apple")
	d.Python("from mcp_tools import memory\nmemory.read_graph()", "red and round")
}

func snapshot(d *Desk) {
	d.Python("x = 41", "")
	d.Do("snapshot_session", args{"name": "before"}, "")
	d.Python("x = 0", "")
	d.Do("restore_snapshot", args{"name": "before"}, "")
	d.Python("x + 1", `^42\b`)
	copies := d.Do("fork_session", args{"count": 2}, "")
	made, _ := copies.Fields["copies"].([]any)
	d.expect(len(made) == 2, "%d copies: %s", len(made), copies.Text)
	own := d.Session
	for _, c := range made {
		if id, ok := c.(string); ok {
			d.Session = id
		}
		d.Python("x += 1; x", `^42\b`)
		d.Do("stop_session", args{}, "")
	}
	d.Session = own
	d.Python("x", `^41\b`)
	d.Do("remove_snapshot", args{"name": "before"}, "")
}

func flavor(d *Desk) {
	d.Do("execute_command", args{"command": "awk '/MemTotal/ {print int($2 / 1000000)}' /proc/meminfo; nproc",
		"flavor": "medium"}, `2\n2`)
}

func limits(d *Desk) {
	d.Python("kept = 1", "")
	a := d.Try("execute_command", args{"command": "python3 -c 'x = []\nwhile True: x.append(bytearray(50_000_000))'"},
		"memory limit")
	d.expect(a.Fields["exit_code"] == 137.0, "code %v", a.Fields["exit_code"])
	d.Try("execute_code", args{"code": "import time; time.sleep(60)", "timeout": 1}, "(?i)kept")
	d.Python("kept", `^1\b`)
	d.Try("execute_command", args{"comand": "true"}, "command")
}

func archives(d *Desk) {
	d.Python(lines("import io, tarfile, zipfile", "for name, mode in ('a.tgz', 'w:gz'), ('a.tar.xz', 'w:xz'):",
		"    with tarfile.open(name, mode) as t:", "        i = tarfile.TarInfo('r/configure'); i.uid, i.gid, i.mode, i.size = "+
			"1001, 127, 0o755, 17", "        t.addfile(i, io.BytesIO(b'#!/bin/sh\\necho ok'))",
		"with zipfile.ZipFile('a.zip', 'w') as z: z.writestr('z/a', 'zipped')"), "")
	d.Shell("tar xzf a.tgz && ./r/configure && rm -rf r && tar xJf a.tar.xz && ./r/configure && "+
		"python3 -m zipfile -e a.zip . && cat z/a", `(?s)ok.*ok.*zipped`)
}

func users(d *Desk) {
	d.Shell("useradd -m ann && su ann -c 'id -un; touch ~/mine' && stat -c %U /home/ann/mine && sudo id -u", `(?s)ann.*ann.*0`)
	d.Do("execute_command", args{"command": "id -un", "user": "ann"}, "ann")
}

func web(d *Desk) {
	d.Write("serve.py", lines("import http.server", "class H(http.server.SimpleHTTPRequestHandler):",
		"    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'apples\\n')",
		"http.server.HTTPServer(('127.0.0.1', 8321), H).serve_forever()"))
	process := d.Begin("exec python3 -u serve.py", nil)
	d.Await(process, "8321", "")
	d.Shell("curl -s localhost:8321/prices", "apples")
	d.Do("read_process", args{"process_id": process}, "GET /prices")
	d.Do("stop_process", args{"process_id": process}, "")
}
