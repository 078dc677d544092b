"""Tools of third-party MCP servers, as functions: `from mcp_tools import SERVER`. /run/mcp/README.md lists the servers."""
import sys as _sys

__path__ = [__file__.rsplit("/", 3)[0]]

from ._client import Binary, Link, ToolError, call, search  # noqa: E402
from . import _client as _c  # noqa: E402

_sys.modules[__name__].__class__ = _c.Package
