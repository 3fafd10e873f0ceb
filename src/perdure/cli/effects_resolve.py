"""`perdure effects resolve`: record what a person found out about a step in doubt."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.cli import console
from perdure.cli.effects_ledger import LedgerOption, document, open_ledger


def resolve(
    key: Annotated[str, Parameter(help="The step's key.")],
    *,
    done: Annotated[bool, Parameter(negative="", help="It happened: it will not be run again.")] = False,
    not_done: Annotated[bool, Parameter(negative="", help="It did not happen: the next call runs it.")] = False,
    result: Annotated[str | None, Parameter(help="With --done: the result as JSON, for the calls that follow.")] = None,
    ledger: LedgerOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Record what you found out about a step in doubt.

    Look at the other side first: whether the payment, the e-mail, the row or the file is there. A late result of the old holder
    is refused from then on.

    For example:

      perdure effects resolve charge-4711 --done --result '{"receipt": "r-9"}'
    """
    if done == not_done:
        raise errors.UsageError("say what happened", hint="give --done or --not-done, one of them")
    if result is not None:
        if not_done:
            raise errors.UsageError("a step that was not done has no result", hint="leave out --result")
        try:
            msgspec.json.decode(result)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise errors.UsageError(f"--result is not JSON: {error}", hint="quote it for the shell: --result '{\"id\": 1}'") from error
    with open_ledger(common, ledger) as opened:
        row = opened.resolve(key, done=done, result=result)
    if common.json:
        console.print_json(document(row, row.state))
        return
    console.note(common, f"{console.printable(key)}: {row.state.value.replace('_', ' ')}, by {console.printable(row.settled_by)}")
