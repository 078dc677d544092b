"""Tools of the MCP server mcp. It cannot be called now: it needs a log-in; `mcp search mcp` says where. Documents: /run/mcp/mcp_/README.md"""
from __future__ import annotations
from mcp_tools._client import Aio as _Aio, caller as _caller, loaded as _loaded
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Required, TypeAlias, TypedDict
    from mcp_tools import Binary, Link

_call = _caller("mcp")
aio = _Aio(__name__, "mcp")
__getattr__ = _loaded(__name__, __file__)
_why = "it needs a log-in; `mcp search mcp` says where"
