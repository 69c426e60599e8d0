"""Counts connections, as the kernel knows them."""

import os


def connections(port, process="self"):
    """How many connections to a local port a process has."""
    inodes = set()
    with open("/proc/net/tcp") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if int(fields[2].partition(":")[2], 16) == port and fields[3] == "01":
                inodes.add(f"socket:[{fields[9]}]")
    count = 0
    for fd in os.listdir(f"/proc/{process}/fd"):
        try:
            count += os.readlink(f"/proc/{process}/fd/{fd}") in inodes
        except OSError:
            pass  # it was closed meanwhile
    return count
