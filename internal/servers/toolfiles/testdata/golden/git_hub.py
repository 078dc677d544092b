"""Tools of the MCP server git-hub. Documents: /run/mcp/git_hub/README.md"""
from __future__ import annotations
from mcp_tools._client import Aio as _Aio, caller as _caller, loaded as _loaded
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Required, TypeAlias, TypedDict
    from mcp_tools import Binary, Link
    _class__Node: TypeAlias = "Any"
    _create_issue_User = TypedDict("_create_issue_User", {"login": "Required[str]", "team": "list[_create_issue_User]"}, total=False)
    _create_issue_object = TypedDict("_create_issue_object", {"file-name": "Required[str]", "line": "int"}, total=False)
    _create_issue_object_2 = TypedDict("_create_issue_object_2", {"number": "Required[int]"}, total=False)

_call = _caller("git-hub")
aio = _Aio(__name__, "git-hub")
__getattr__ = _loaded(__name__, __file__)


def class_(*, node: _class__Node = ..., timeout: float | None = None, _timeout=None) -> Any:
    """HELD BACK: its definition has changed"""
    return _call("class", locals())


def create_issue(*, title: str, labels: list[str] = ..., state: Literal["open", "closed"] = ..., assignee: _create_issue_User | str | None = ..., place: _create_issue_object = ..., class_: str = ..., in_reply_to: int | None = ..., timeout: float = ..., _timeout=None) -> _create_issue_object_2:
    """Creates an issue. It returns its number.

    title: What it is about
    labels: (default: [])
    state: (default: "open")"""
    return _call("create-issue", locals(), {"class_": "class", "in_reply_to": "in-reply-to", "timeout": "timeout"})


def list(*, timeout: float | None = None, _timeout=None, **_more: Any) -> Any:
    """Lists issues"""
    return _call("list", locals())
