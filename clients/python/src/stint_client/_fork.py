"""Connections belong to the process that made them."""

from __future__ import annotations

import os
import socket
import weakref
from typing import Protocol


class Connection(Protocol):
    def fileno(self) -> int:
        """The descriptor, or -1."""
        ...


class Owner(Protocol):
    def _forget(self) -> None:
        """Begin without connections, in a process that was forked."""
        ...


connections: weakref.WeakSet[Connection] = weakref.WeakSet()
owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _in_child() -> None:
    """Replace what the child has of its parent's connections.

    Greenlets and handlers of signals that were in the middle of a call go on in the child, too. A descriptor that they
    still use then belongs to a socket without a peer, so they fail, and read nothing that is the parent's.
    """
    for c in list(connections):
        fd = c.fileno()
        if fd < 0:
            continue
        os.close(fd)  # first, since no descriptor may be left
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as unconnected:
            if unconnected.fileno() == fd:
                unconnected.detach()
            else:
                os.dup2(unconnected.fileno(), fd, inheritable=False)
    connections.clear()
    for owner in list(owners):
        owner._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
