"""Which features of a processor a restored program may depend on. Pure; names are those of /proc/cpuinfo.

A program, its libraries and the dynamic loader choose instructions by feature once, when they start, and keep to that choice after a
restore. What they cannot choose by (the kernel's own use, speed without instructions of its own) does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, cast, get_args

import msgspec

from perdure import errors

_USED_X86 = re.compile(
    r"(?:mmx|mmxext|3dnow|3dnowext|sse|sse2|pni|ssse3|sse4_1|sse4_2|sse4a|avx\w*|amx_\w+|fma|fma4|xop|tbm|lwp|f16c|bmi1|bmi2|abm|popcnt|movbe"
    r"|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni|sha512|sm3|sm4|adx|rdrand|rdseed|rdtscp|rdpid|cx8|cx16|cmov|fxsr|fpu|tsc|lahf_lm|fsgsbase"
    r"|rtm|hle|xsave|xsaveopt|xsavec|xgetbv1|osxsave|clflush|clflushopt|clwb|clzero|cldemote|movdiri|movdir64b|enqcmd|serialize|waitpkg"
    r"|pku|ospke|3dnowprefetch|monitorx|mwaitx|wbnoinvd|ptwrite|cmpccxadd|prefetchi|user_shstk|ibt|raoint|hreset|apx\w*)"
)
_SPEED_X86 = frozenset({"erms", "fsrm", "fsrs", "fsrc", "fzrm", "rep_good", "misalignsse", "perfctr_core", "perfctr_nb", "fast_lsa"})
"""Faster, and nothing else: erms alone has made restores be refused that would have worked."""

_UNUSED_ARM = frozenset({"evtstrm", "cpuid", "dcpop", "dcpodp"})

Check = Literal["features", "strict", "off"]


def chosen(text: str, origin: str) -> Check:
    """Return the kind of check that `text`, from `origin`, asks for. Raises `errors.SettingError`."""
    for known in get_args(Check):
        if text == known:
            return cast("Check", known)
    raise errors.SettingError(f"cpu-check: {text!r} is none of {', '.join(get_args(Check))} ({origin})")


class Difference(msgspec.Struct, frozen=True):
    """Features that were there and are missing here: `used` by programs, and others."""

    used: tuple[str, ...]
    other: tuple[str, ...]


def difference(before: Collection[str], here: Collection[str], machine: str) -> Difference:
    """Return what of the features `before` is missing `here`, on architecture `machine`."""
    missing = sorted(set(before) - set(here))
    used = [flag for flag in missing if is_used(flag, machine)]
    return Difference(tuple(used), tuple(flag for flag in missing if flag not in used))


def is_used(flag: str, machine: str) -> bool:
    """Tell whether a program can depend on feature `flag` of architecture `machine`. Unknown architectures: on any."""
    if machine in ("x86_64", "i686", "i386"):
        return flag not in _SPEED_X86 and _USED_X86.fullmatch(flag) is not None
    return flag not in _UNUSED_ARM
