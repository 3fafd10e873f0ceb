"""Rules about sockets: Unix ones to outside, families and protocols that cannot be saved, connections that end. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.base.proc.descriptors import Descriptor
from perdure.checkpoint.preflight import about
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import Member, Scene
from perdure.model.finding import Finding

SAVED_PROTOCOLS = frozenset(
    {"TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6", "PING", "PINGv6", "UNIX", "UNIX-STREAM", "NETLINK", "PACKET"}
)
"""The kernel's names of protocols that CRIU saves and restores; tried with 4.2.1."""

_INET_PROTOCOLS = ("MPTCP", "SCTP", "DCCP", "SMC", "TIPC")
_ENDED = frozenset({"listen", "closed", "time-wait"})


def check(scene: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with the sockets of `scene`, and which connections end."""
    inside = inodes(scene)
    for inode, (member, opened) in inside.items():
        protocol = member.protocols.get(opened.number, "")
        if protocol and protocol not in SAVED_PROTOCOLS:
            code = "network-protocol" if protocol.startswith(_INET_PROTOCOLS) else "network-family"
            yield about.descriptor(code, member, opened, f"is a socket of {protocol}, which cannot be saved", flag=protocol)
        elif inode in scene.netlink_pending:
            yield about.descriptor("network-netlink-pending", member, opened, "is a netlink socket with unread messages")
        elif inode in scene.corked:
            yield about.descriptor("network-datagram-corked", member, opened, "is a UDP socket with data that is not sent yet")
        elif inode in scene.unix:
            yield from _unix(scene, plan, inside, inode)
    yield from _connections(scene, plan, inside)


def inodes(scene: Scene) -> dict[int, tuple[Member, Descriptor]]:
    """Return who has each socket of the tree open, by inode: of several the first."""
    found: dict[int, tuple[Member, Descriptor]] = {}
    for member in scene.members:
        for opened in member.descriptors:
            if opened.target.startswith("socket:["):
                found.setdefault(opened.inode, (member, opened))
    return found


def _unix(scene: Scene, plan: Plan, inside: dict[int, tuple[Member, Descriptor]], inode: int) -> Iterator[Finding]:
    member, opened = inside[inode]
    peer = scene.unix_peers.get(inode)
    if peer is None or peer in inside or f"unix[{inode}]" in plan.external:
        return
    holders = scene.outside.get(f"socket:[{peer}]", ())
    other = scene.unix.get(peer)
    path = other.path if other else None
    whom = f"process {holders[0].pid}" if holders else "a process"
    at = f" at {path}" if path else ""
    if scene.unix[inode].kind == "datagram":
        yield about.descriptor("network-unix-datagram", member, opened, f"is a Unix datagram socket that sends to {whom} outside{at}")
        return
    yield about.descriptor(
        "network-unix-outside", member, opened, f"is a Unix {scene.unix[inode].kind} socket connected to {whom} outside{at}", flag=path
    )


def _connections(scene: Scene, plan: Plan, inside: dict[int, tuple[Member, Descriptor]]) -> Iterator[Finding]:
    ours = [socket for socket in scene.inet if socket.inode in inside and socket.protocol.startswith("tcp") and socket.state not in _ENDED]
    ends = {(socket.local, socket.remote) for socket in ours}
    for socket in ours:
        if (socket.remote, socket.local) in ends:
            continue
        member, opened = inside[socket.inode]
        name = f"{address(socket.local)} → {address(socket.remote)}"
        if plan.tcp == "keep":
            yield about.descriptor("network-tcp-keep", member, opened, f"connection {name} ({socket.state}) is kept", flag="--tcp")
        else:
            yield about.descriptor(
                "network-tcp-closed", member, opened, f"connection {name} ({socket.state}) is closed on restore", flag="--tcp"
            )
    yield from _waiting(scene, inside)


def _waiting(scene: Scene, inside: dict[int, tuple[Member, Descriptor]]) -> Iterator[Finding]:
    """Yield connections that a listener of the tree has not accepted yet: the kernel has them, no descriptor does."""
    listeners = {
        (socket.protocol, socket.local[1]): inside[socket.inode]
        for socket in scene.inet
        if socket.state == "listen" and socket.inode in inside
    }
    for socket in scene.inet:
        holder = listeners.get((socket.protocol, socket.local[1]))
        if holder is not None and socket.inode == 0 and socket.state in ("established", "syn-received", "close-wait"):
            member, opened = holder
            yield finding(
                "network-tcp-waiting",
                f"{member.name} fd {opened.number}",
                f"has not accepted {address(socket.remote)} yet: that connection is dropped",
                pid=member.pid,
                fd=opened.number,
            )


def address(end: tuple[str, int]) -> str:
    """Return an address and its port as people write them: ``10.0.0.1:80``, ``[::1]:80``."""
    host, port = end
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
