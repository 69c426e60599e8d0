"""What the modules for web frameworks share."""

from __future__ import annotations

import posixpath
from typing import Literal, Optional, get_args

OnError = Literal["reject", "allow"]
DEGRADED = "X-RateLimit-Degraded"  # a client that sends it is not believed


def checked(on_error: str) -> OnError:
    for known in get_args(OnError):
        if on_error == known:
            return on_error  # type: ignore[return-value]
    raise ValueError(f"on_error is {on_error!r}, want 'reject' or 'allow'")


def describe(ip: Optional[str], method: str, path: str, host: str) -> dict[str, str]:
    """The attributes that every request has. The path is cleaned, so that /api//login does not get around a limit of /api/login."""
    attributes = {"method": method, "path": _clean(path)}
    if ip:
        attributes["ip"] = ip
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name:
        attributes["host"] = name.lower()
    return attributes


def _clean(path: str) -> str:
    if path in ("", "*") or path.startswith("/") and "//" not in path and "/." not in path:
        return path
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if clean != "/" and path.endswith(("/", "/.", "/..")) else clean
