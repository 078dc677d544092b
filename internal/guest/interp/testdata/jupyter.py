"""Runs notebooks through nbclient and ipykernel: the reference of TestCellsBesideJupyter.

Standard input is a list of notebooks in JSON, each with its name, its folder and its cells. The argument is the file that
gets the list of their outputs, cell by cell, as a notebook has them. Kernels write to standard output.
"""
import asyncio, json, sys

import nbclient, nbformat.v4


async def run(notebook, turns):
    async with turns:
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in notebook["cells"]])
        client = nbclient.NotebookClient(made, timeout=60, kernel_name="python3", allow_errors=True, store_widget_state=False,
                                         resources={"metadata": {"path": notebook["folder"]}})
        await client.async_execute()
        return [cell["outputs"] for cell in made["cells"]]


async def main():
    turns = asyncio.Semaphore(2)
    return await asyncio.gather(*(run(n, turns) for n in json.load(sys.stdin)))


outputs = asyncio.run(main())
with open(sys.argv[1], "w") as f:
    json.dump(outputs, f)
