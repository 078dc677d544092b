package test

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// makeDocuments makes a document of each kind.
const makeDocuments = `
import docx, openpyxl, pptx, json
from reportlab.pdfgen import canvas
d = docx.Document(); d.add_heading('Report', 1); d.add_paragraph('Revenue grew.')
t = d.add_table(2, 2); t.cell(0, 0).text = 'Q1'; t.cell(1, 1).text = '42'; d.add_paragraph('The end.'); d.save('r.docx')
b = openpyxl.Workbook(); s = b.active; s.title = 'Sales'
for n in range(1000): s.append(['row', n, n * 1.5])
b.create_sheet('Other').append(['x']); b.save('r.xlsx')
p = pptx.Presentation()
for n in (1, 2, 3): p.slides.add_slide(p.slide_layouts[5]).shapes.title.text = 'Slide title %d' % n
p.save('r.pptx')
c = canvas.Canvas('r.pdf')
for n in range(1, 13): c.drawString(100, 700, 'Words of page %d' % n); c.showPage()
c.save()
open('r.html', 'w').write('<!doctype html><title>T</title><style>p{}</style><h1>Head</h1><p>One <b>bold</b> word<script>x()</script><ul><li>a<li>b</ul>')
json.dump({'cells': [{'cell_type': 'code', 'source': ['x = 1\n', 'x'], 'outputs': [{'data': {'text/plain': '1', 'image/png': 'AA'}}]}]}, open('n.ipynb', 'w'))
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({'a': list(range(500)), 'b': ['v%d' % n for n in range(500)]}), 'r.parquet')
open('damaged.docx', 'wb').write(b'PK\x03\x04 no archive')
open('json.py', 'w').write('raise SystemExit("shadowed")')
print('made')`

// TestDocuments: common documents are read as text, by page or row, without a flood.
func TestDocuments(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_PACKAGES_PYTHON=openpyxl,python-docx,python-pptx,pypdf,reportlab,pyarrow")...)
	c := s.connect(older, "", nil)
	none := c.call("execute_command", args{"session_id": "new", "command": "echo '%PDF-1.4' > x.pdf"}).session()
	try := func(a args) *result {
		t.Helper()
		r, err := c.try(t.Context(), "sandbox_read_file", a)
		if err != nil {
			r = &result{CallToolResult: &mcp.CallToolResult{IsError: true}, All: err.Error()}
		}
		return r
	}
	if r := try(args{"session_id": none, "path": "x.pdf", "as": "text"}); !r.IsError ||
		!strings.Contains(r.All, "pip install pypdf") {
		t.Errorf("without the package: %q", r.All)
	}
	until(t, "the packages are made", func() bool { return strings.Contains(s.log.String(), "the ready packages are there") })
	id := ""
	until(t, "documents are made", func() bool {
		r := c.code("new", makeDocuments)
		id = r.session()
		return strings.Contains(r.Text, "made")
	})
	read := func(path, pages string) *result {
		a := args{"session_id": id, "path": path, "as": "text"}
		if pages != "" {
			a["pages"] = pages
		}
		return try(a)
	}
	for _, x := range []struct{ path, pages, want string }{
		{"r.docx", "", "# Report\nRevenue grew.\nQ1\t\n\t42\nThe end.\n[4 paragraphs]"},
		{"r.xlsx", "", "--- sheet Sales: 1000 rows ---\nrow\t0\t0\nrow\t1\t1.5\n"},
		{"r.xlsx", "", "[rows 1 to 200 of 1000; go on with pages \"201-\"]"},
		{"r.xlsx", "1000", "row\t999\t1498.5"},
		{"r.pptx", "2-3", "--- slide 2 ---\nSlide title 2\n\n--- slide 3 ---\nSlide title 3\n[slides 2 to 3 of 3]"},
		{"r.pdf", "12", "--- page 12 ---\nWords of page 12"},
		{"r.pdf", "", "[12 pages]"},
		{"r.html", "", "T\n\n# Head\n\nOne bold word\n\n- a\n- b"},
		{"n.ipynb", "", "--- cell 1: code ---\nx = 1\nx\noutput: 1 [image/png]\n[1 cells]"},
		{"r.parquet", "499-", "a\tb\n498\tv498\n499\tv499\n[rows 499 to 500 of 500]"},
	} {
		if r := read(x.path, x.pages); r.IsError || !strings.Contains(r.All, x.want) {
			t.Errorf("%s %s: %.600q", x.path, x.pages, r.All)
		}
	}
	for _, x := range []struct{ path, pages, want string }{
		{"damaged.docx", "", "damaged archive"}, {"missing.pdf", "", "No such file"}, {"r.pdf", "13", "there are 12"},
		{"r.pdf", "one", "is not a range"}, {"json.py", "", "not a document that can be read as text"},
	} {
		if r := read(x.path, x.pages); !r.IsError || !strings.Contains(r.All, x.want) {
			t.Errorf("%s %s: %.300q", x.path, x.pages, r.All)
		}
	}
	if r := c.call("sandbox_read_file", args{"session_id": id, "path": "r.xlsx"}); !strings.Contains(r.All, `"as": "text" returns its text`) ||
		len(r.All) > 600 {
		t.Errorf("%.700q", r.All)
	}
	if r := c.call("sandbox_read_file", args{"session_id": id, "path": "r.xlsx", "as": "text", "pages": "1-900", "limit": 1000}); len(r.Text) > 1300 ||
		!strings.Contains(r.All, "go on with offset 1000") {
		t.Errorf("cut: %d characters, %.300q", len(r.Text), r.All[max(0, len(r.All)-300):])
	}
}
