"""Codes of findings about: sockets of a running workload."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING
_I = Severity.INFO

GROUP = Group(
    "Network of a running workload",
    (
        Code(
            "network-unix-outside",
            _P,
            "a Unix stream socket is connected to a process outside the workload: half a connection cannot be restored",
            "start that peer inside the workload, or let the program connect anew after a restore and close the socket before",
        ),
        Code(
            "network-unix-datagram",
            _I,
            "a Unix datagram socket sends to a process outside: it is connected again to the same path after a restore",
            "",
        ),
        Code(
            "network-family",
            _P,
            "a socket of a family that CRIU cannot save, such as vsock, AF_XDP or AF_ALG",
            "start the program without it",
        ),
        Code(
            "network-protocol",
            _P,
            "a socket of a protocol that CRIU cannot save, such as MPTCP or SCTP",
            "let the program use TCP or UDP; Go programs: GODEBUG=multipathtcp=0",
        ),
        Code(
            "network-netlink-pending",
            _P,
            "a netlink socket holds messages that the program has not read",
            "try again: most programs read them at once",
        ),
        Code(
            "network-unix-named",
            _P,
            "a Unix socket of an ordinary user's workload has a name in a folder that the user can change: making it again is root's work,"
            " and could be led elsewhere meanwhile",
            "use an abstract name, a socketpair or a loopback address",
        ),
        Code(
            "network-datagram-corked",
            _P,
            "a UDP socket holds back data until it is uncorked",
            "try again: the program sends it soon",
        ),
        Code(
            "network-tcp-closed",
            _I,
            "an established connection to outside: it is closed when the workload is restored",
            "keep it where the same addresses come back: perdure run --tcp keep",
        ),
        Code(
            "network-tcp-keep",
            _W,
            "an established connection to outside is to be kept: that works only while the peer waits, and with the same addresses",
            "",
        ),
        Code(
            "network-tcp-waiting",
            _I,
            "a connection waits to be accepted: it is dropped, and the peer sees it closed when the workload is restored",
            "",
        ),
    ),
)
