"""Prints cells that are the examples of the documentation of installed packages, as notebooks in JSON.

The arguments are how many cells there are to be at most, and the names of modules.
"""
import ast, doctest, importlib, inspect, json, re, sys, warnings

# What differs from run to run, waits, asks, leaves the folder or ends the kernel.
LEFT_OUT = re.compile(r"random|time|tim\.|thread|process|socket|url|http|input\(|exit|open\(|path|file|mmap|memmap|save|dump|load|read_|to_csv|to_excel|"
                      r"to_sql|to_pickle|to_parquet|to_clipboard|tempfile|os\.|getpid|uuid|id\(|hash\(|now\(|today\(|show_versions|show_config|info\(\)|"
                      r"setrecursion|np\.test|pd\.test|doctest|gc\.|sys\.|empty|_ipython|plot|plt\.|style|Styler|nbytes|sizeof|memory_usage|weakref")


def examples(module):
    """The documentation's examples of a module's members, in lists of those that belong together."""
    found, seen = [], set()
    for name in sorted(vars(module)):
        member = vars(module)[name]
        if name.startswith("_") or not callable(member) or id(member) in seen:
            continue
        seen.add(id(member))
        members = [member]
        if inspect.isclass(member):
            members += [vars(member)[n] for n in sorted(vars(member)) if not n.startswith("_") and callable(vars(member)[n])]
        for m in members:
            text = getattr(m, "__doc__", None)
            if not isinstance(text, str) or ">>>" not in text:
                continue
            try:
                parsed = doctest.DocTestParser().get_examples(inspect.cleandoc(text))
            except ValueError:
                continue
            if any(LEFT_OUT.search(e.source) or e.options for e in parsed):
                continue
            found.append([e.source.rstrip("\n") for e in parsed])
    return found


def main():
    warnings.simplefilter("ignore")
    most, notebooks = int(sys.argv[1]), []
    share = most // len(sys.argv[2:])
    for name in sys.argv[2:]:
        found = examples(importlib.import_module(name))
        cells, size = [], sum(map(len, found))
        step = max(size / share, 1)
        # Evenly from the whole module.
        taken = 0.0
        for example in found:
            taken += len(example)
            if taken >= step * (len(cells) + 1) and len(cells) < share:
                cells += example
        notebooks.append({"name": "examples of " + name, "cells": ["import numpy as np, pandas as pd\nfrom %s import *" % name] + cells[:share]})
    json.dump(notebooks, sys.stdout)


main()
