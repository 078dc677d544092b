# Prints a document as text: a line of JSON about it, and then the text from an offset on. It runs in the sandbox.
# Arguments: the file, the range of pages or rows ("", "3", "2-5", "4-"), the offset and the most characters.
import sys

sys.path[:] = [p for p in sys.path if p]  # nothing of the folder that it starts in
import json, os, zipfile

path, wanted, offset, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ROWS = 200  # of a table, unless a range is given


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(3)


def need(module, package):
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        fail("reading it needs the package %s: pip install %s" % (package, package))


def span(count, least=None):
    """The range that is wanted, as first and last, from 1."""
    if not wanted:
        return 1, count if least is None else min(count, least)
    first, _, last = wanted.partition("-")
    try:
        first = int(first or 1)
        last = int(last or count) if "-" in wanted else first
    except ValueError:
        fail('the range %r is not a range, such as "3", "2-5" or "4-"' % wanted)
    if first < 1 or first > max(count, 1) or last < first:
        fail("there are %d: the range %s is not in them" % (count, wanted))
    return first, min(last, count)


def table(rows):
    return "\n".join("\t".join("" if c is None else str(c).replace("\t", " ").replace("\n", " ") for c in row) for row in rows)


def pdf():
    pages = need("pypdf", "pypdf").PdfReader(path).pages
    first, last = span(len(pages))
    return "pages", len(pages), first, last, "\n\n".join(
        "--- page %d ---\n%s" % (n, pages[n - 1].extract_text()) for n in range(first, last + 1))


def docx():
    document = need("docx", "python-docx").Document(path)
    parts = []
    for item in document.iter_inner_content():
        if hasattr(item, "rows"):
            parts.append(table([[cell.text for cell in row.cells] for row in item.rows]))
        else:
            style = (item.style.name if item.style is not None else "") or ""
            level = style[8:] if style.startswith("Heading ") else ""
            parts.append("#" * int(level) + " " + item.text if level.isdigit() else item.text)
    first, last = span(len(parts))
    return "paragraphs", len(parts), first, last, "\n".join(parts[first - 1 : last])


def pptx():
    slides = list(need("pptx", "python-pptx").Presentation(path).slides)
    first, last = span(len(slides))
    parts = []
    for n in range(first, last + 1):
        lines = ["--- slide %d ---" % n]
        for shape in slides[n - 1].shapes:
            if shape.has_text_frame:
                lines.append(shape.text_frame.text)
            elif getattr(shape, "has_table", False) and shape.has_table:
                lines.append(table([[cell.text for cell in row.cells] for row in shape.table.rows]))
        if slides[n - 1].has_notes_slide:
            lines.append("notes: " + slides[n - 1].notes_slide.notes_text_frame.text)
        parts.append("\n".join(line for line in lines if line))
    return "slides", len(slides), first, last, "\n\n".join(parts)


def xlsx():
    book = need("openpyxl", "openpyxl").load_workbook(path, read_only=True, data_only=True)
    most_rows = max([sheet.max_row or 0 for sheet in book.worksheets] or [0])
    first, last = span(most_rows, ROWS)
    parts = []
    for sheet in book.worksheets:
        rows = [row for row in sheet.iter_rows(min_row=first, max_row=last, values_only=True)]
        parts.append("--- sheet %s: %d rows ---\n%s" % (sheet.title, sheet.max_row or 0, table(rows)))
    return "rows", most_rows, first, last, "\n\n".join(parts)


def parquet():
    file = need("pyarrow.parquet", "pyarrow").ParquetFile(path)
    count = file.metadata.num_rows
    first, last = span(count, ROWS)
    rows, at = [file.schema_arrow.names], 0
    for batch in file.iter_batches(batch_size=4096):
        for n, row in enumerate(zip(*batch.to_pydict().values()) if at + batch.num_rows >= first else (), at + 1):
            if first <= n <= last:
                rows.append(row)
        at += batch.num_rows
        if at >= last:
            break
    return "rows", count, first, last, table(rows)


def html():
    from html.parser import HTMLParser

    class Text(HTMLParser):
        parts, skip = [], 0
        blocks = "p div br tr li ul ol table section article header footer h1 h2 h3 h4 h5 h6 pre title blockquote".split()

        def handle_starttag(self, tag, attrs):
            self.skip += tag in ("script", "style", "noscript", "template")
            if tag in self.blocks:
                self.parts.append("\n" + ("#" * int(tag[1]) + " " if tag[0] == "h" and tag[1:].isdigit() else "- " if tag == "li" else ""))
            if tag in ("td", "th"):
                self.parts.append("\t")

        def handle_endtag(self, tag):
            self.skip -= tag in ("script", "style", "noscript", "template") and self.skip > 0
            if tag in self.blocks:
                self.parts.append("\n")

        def handle_data(self, data):
            if not self.skip:
                words = " ".join(data.split())
                self.parts.append(" " * data[0].isspace() + words + " " * data[-1].isspace() if words else " ")

    parser = Text(convert_charrefs=True)
    parser.feed(open(path, encoding="utf-8", errors="replace").read())
    parser.close()
    lines = [" ".join(line.split(" ")).strip(" ") for line in "".join(parser.parts).split("\n")]
    lines = [line for n, line in enumerate(lines) if line.strip() or n and lines[n - 1].strip()]
    first, last = span(len(lines))
    return "lines", len(lines), first, last, "\n".join(lines[first - 1 : last]).strip("\n")


def ipynb():
    cells = json.load(open(path, encoding="utf-8"))["cells"]
    first, last = span(len(cells))
    joined = lambda text: text if isinstance(text, str) else "".join(text or [])
    parts = []
    for n in range(first, last + 1):
        cell = cells[n - 1]
        parts.append("--- cell %d: %s ---\n%s" % (n, cell.get("cell_type"), joined(cell.get("source"))))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = joined(output.get("text")) or joined(data.get("text/plain")) or "\n".join(
                filter(None, [output.get("ename", "") and "%s: %s" % (output["ename"], output.get("evalue", ""))]))
            images = [kind for kind in data if kind.startswith("image/")]
            parts.append("output: " + text + "".join(" [%s]" % kind for kind in images))
    return "cells", len(cells), first, last, "\n".join(parts)


def kind():
    head = open(path, "rb").read(8)
    if head.startswith(b"%PDF"):
        return pdf
    if head.startswith(b"PAR1"):
        return parquet
    if head.startswith(b"PK"):
        try:
            names = set(zipfile.ZipFile(path).namelist())
        except zipfile.BadZipFile:
            fail("it is a damaged archive")
        for name, reader in ("word/document.xml", docx), ("xl/workbook.xml", xlsx), ("ppt/presentation.xml", pptx):
            if name in names:
                return reader
        fail("it is an archive of %d files, and no document: unzip -l lists them" % len(names))
    ending = os.path.splitext(path)[1].lower()
    if ending == ".ipynb":
        return ipynb
    if ending in (".html", ".htm", ".xhtml") or head.lstrip().lower().startswith((b"<!doctyp", b"<html")):
        return html
    fail("it is not a document that can be read as text (docx, xlsx, pptx, pdf, html, ipynb, parquet)")


try:
    unit, count, first, last, text = kind()()
except SystemExit:
    raise
except Exception as e:
    fail("it cannot be read: %s: %s" % (type(e).__name__, e))
sys.stdout.reconfigure(encoding="utf-8", errors="replace")
print(json.dumps({"unit": unit, "count": count, "first": first, "last": last, "characters": len(text)}))
sys.stdout.write(text[offset : offset + most])
