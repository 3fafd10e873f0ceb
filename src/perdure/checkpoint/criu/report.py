"""What `perdure doctor` says about CRIU, its init, and the prlimit library: which is used and why, and why others are not."""

from __future__ import annotations

import shutil

import msgspec

from perdure import errors
from perdure.checkpoint.criu import locate, probe
from perdure.checkpoint.criu.locate import Candidate, Criu, Init, Places
from perdure.model.finding import Finding, Severity

BRING = "perdure doctor --bring-criu"


class Report(msgspec.Struct, frozen=True):
    """`criu` and `init` are those that would be used; None: there is none."""

    criu: Criu | None
    init: Init | None
    findings: tuple[Finding, ...]


def make(where: Places) -> Report:
    """Look at every CRIU that is there and prove each again, whatever is remembered. Without root none can be proved."""
    init, findings = _init(where)
    found = locate.candidates(where)
    if not found:
        findings.append(_none(where))
        return Report(None, init, tuple(findings))
    if init is None or probe.why_not_here() is not None:
        findings += [_untried(criu) for criu in found]
        return Report(None, init, tuple(findings))
    used: Criu | None = None
    rejected: list[Candidate] = []
    for criu in found:
        candidate = locate.examine(where, criu, fresh=True)
        if candidate.outcome is not None and candidate.outcome.passed:
            used = candidate.criu
            break
        rejected.append(candidate)
    findings += [_rejected(candidate, works=used is not None) for candidate in rejected]
    if used is not None:
        findings += _used(used)
    return Report(used, init, tuple(findings))


def _init(where: Places) -> tuple[Init | None, list[Finding]]:
    try:
        init = locate.find_init(where)
    except errors.EnvironmentUnfit as error:
        finding = Finding(code="host-no-init", severity=Severity.PROBLEM, subject="init", message=str(error), remedy=BRING)
        return None, [finding]
    message = f"{init.path} ({init.kind}, {init.origin})"
    return init, [Finding(code="host-init", severity=Severity.INFO, subject="init", message=message, path=init.path)]


def _none(where: Places) -> Finding:
    if where.named is not None:
        message = f"{where.named} (named by {where.named_by}) is neither a CRIU nor a prefix with one"
    else:
        message = "there is none: not in PATH, and no private prefix"
    return Finding(code="host-criu", severity=Severity.PROBLEM, subject="criu", message=message, remedy=BRING)


def _untried(criu: Criu) -> Finding:
    return Finding(
        code="criu-untried",
        severity=Severity.INFO,
        subject="criu",
        message=f"{criu.program} is there ({criu.origin}); whether it works is not proved, for lack of what is named above",
        path=criu.program,
    )


def _rejected(candidate: Candidate, *, works: bool) -> Finding:
    outcome = candidate.outcome
    explanation = outcome.explanation if outcome else None
    name = f"criu {outcome.version}".strip() if outcome else "criu"
    reason = explanation.message if explanation else candidate.refused
    step = f" (it failed at: {outcome.step})" if outcome else ""
    return Finding(
        code=explanation.code if explanation else "criu-untrusted",
        # Where another one works this is no more than the reason why.
        severity=Severity.INFO if works else Severity.PROBLEM,
        subject=f"{name} at {candidate.criu.program}, {candidate.criu.origin}",
        message=f"not used: {reason}{step}",
        remedy=None if works else (explanation.remedy if explanation and explanation.remedy else BRING),
        path=candidate.criu.program,
    )


def _used(criu: Criu) -> list[Finding]:
    findings = [
        Finding(
            code="criu-used",
            severity=Severity.INFO,
            subject="criu",
            message=f"{criu.version} at {criu.program} ({criu.origin}): dumped and restored a process with a connection and a timer",
            path=criu.program,
        )
    ]
    if criu.needs_prlimit_preload:
        findings.append(_preload(criu))
    if criu.network_lock == "iptables" and shutil.which("iptables-restore") is None:
        findings.append(
            Finding(
                code="network-no-lock",
                severity=Severity.WARNING,
                subject="iptables",
                message="neither nftables nor iptables can be used: processes with established TCP connections cannot be saved",
                remedy="use a kernel with nf_tables, or: apt-get install iptables",
            )
        )
    return findings


def _preload(criu: Criu) -> Finding:
    if criu.preload is not None:
        return Finding(
            code="criu-prlimit-made",
            severity=Severity.INFO,
            subject="prlimit library",
            message=f"{criu.preload} answers for the missing CAP_SYS_RESOURCE",
            path=criu.preload,
        )
    return Finding(
        code="host-prlimit",
        severity=Severity.WARNING,
        subject="prlimit library",
        message="CAP_SYS_RESOURCE is missing and there is no C compiler for the library that helps: only root's own processes can be saved",
        remedy="apt-get install gcc libc6-dev, then perdure doctor; or give the container CAP_SYS_RESOURCE",
    )
