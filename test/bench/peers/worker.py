"""A Python that keeps its state: it runs the code in each line of JSON, and answers with what it printed and its value."""
import contextlib, io, json, sys

names = {}
for line in sys.stdin:
    code, out, value = json.loads(line), io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            value = eval(code, names)
        except SyntaxError:
            exec(code, names)
    print(json.dumps({"text": out.getvalue(), "value": value}), flush=True)
