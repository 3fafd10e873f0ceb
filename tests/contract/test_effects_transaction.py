"""The ledger's row and the job's own rows in one transaction, and messages that leave with it: on a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from children import exit_status, in_child, wait_for

from perdure import errors
from perdure.effects import Ledger, Message, State, outbox
from perdure.supervisor import gate

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(server) -> str:
    return server.empty()


@pytest.fixture
def ledger(url) -> Iterator[Ledger]:
    with Ledger(url, lease_s=0.3, patience_s=1.0) as opened:
        opened.counts()
        yield opened


@pytest.fixture
def connection(url):
    import psycopg

    with psycopg.connect(url) as opened:
        opened.execute("CREATE TABLE account (name text PRIMARY KEY, money int NOT NULL)")
        opened.execute("INSERT INTO account VALUES ('a', 0)")
        opened.commit()
        yield opened


def money(connection) -> int:
    return connection.execute("SELECT money FROM account").fetchone()[0]


def pay(connection, amount: int = 5) -> int:
    connection.execute("UPDATE account SET money = money + %s", (amount,))
    return amount


def test_row_and_result_are_committed_together(ledger, connection):
    for _ in range(3):
        assert ledger.once("pay", lambda: pay(connection), inputs=5, connection=connection) == 5
        connection.commit()
    assert money(connection) == 5
    connection.commit()
    connection.autocommit = True
    assert ledger.once("pay", lambda: pay(connection), connection=connection) == 5
    assert ledger.once("pay-2", lambda: pay(connection), connection=connection) == 5
    connection.autocommit = False
    assert money(connection) == 10
    assert ledger.metrics() == {"ran": 2, "replayed": 3}
    assert ledger.look("pay")[0].settled_by == "step"


def test_no_checkpoint_falls_into_the_step_and_none_waits_for_it_afterwards(ledger, connection, tmp_path, monkeypatch):
    epoch_file = tmp_path / "epoch"
    epoch_file.write_text("1\na\n")
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(epoch_file))
    monkeypatch.setattr(gate, "_LONGEST_S", 0.1)
    gate.make(epoch_file)

    def may_freeze() -> bool:
        with gate.shut(epoch_file) as is_shut:
            return is_shut

    assert ledger.once("a", may_freeze, connection=connection) is False
    assert may_freeze()
    with pytest.raises(ZeroDivisionError):
        ledger.once("b", lambda: 1 / 0, connection=connection)
    assert may_freeze()


def test_a_roll_back_takes_both_away(ledger, connection):
    ledger.once("pay", lambda: pay(connection), connection=connection)
    connection.rollback()
    assert ledger.look("pay") is None
    assert money(connection) == 0


def test_an_exception_undoes_the_step_and_leaves_the_rest_of_the_transaction(ledger, connection):
    pay(connection, 100)
    with pytest.raises(ZeroDivisionError):
        ledger.once("pay", lambda: pay(connection) / 0, connection=connection)
    connection.commit()
    assert money(connection) == 100
    assert ledger.look("pay") is None


def test_a_kill_at_any_point_leaves_no_doubt(url, ledger, connection):
    import psycopg

    def die(when: str) -> None:
        with psycopg.connect(url) as own:

            def step() -> int:
                pay(own)
                if when == "inside":
                    os.kill(os.getpid(), signal.SIGKILL)
                return 5

            ledger.once("pay", step, connection=own)
            os.kill(os.getpid(), signal.SIGKILL)

    for when in ("inside", "after"):
        assert exit_status(in_child(lambda when=when: die(when))) == -signal.SIGKILL
    ledger.once("pay", lambda: pay(connection), connection=connection)
    connection.commit()
    assert money(connection) == 5
    assert ledger.counts()["in_doubt"] == 0


def test_of_many_transactions_one_does_the_step(url, ledger, connection):
    import psycopg

    def work() -> None:
        with psycopg.connect(url) as own:
            assert ledger.once("pay", lambda: pay(own), connection=own) == 5

    children = [in_child(work) for _ in range(12)]
    assert [exit_status(child) for child in children] == [0] * 12
    assert money(connection) == 5


def test_a_result_that_cannot_be_kept_undoes_the_step(ledger, connection):
    with pytest.raises(errors.EffectUnkept):
        ledger.once("pay", lambda: [pay(connection), "x" * 100_000], connection=connection)
    connection.commit()
    assert money(connection) == 0
    assert ledger.look("pay") is None


def test_a_life_that_is_over_writes_nothing(url, ledger, connection):
    with Ledger(url, workload="w", epoch=2) as new:
        new.once("other", lambda: None)
    with Ledger(url, workload="w", epoch=1) as old, pytest.raises(errors.StaleLife):
        old.once("pay", lambda: pay(connection), connection=connection)
    connection.commit()
    assert money(connection) == 0


def test_a_step_in_doubt_or_at_work_outside_is_told_at_once(url, ledger, connection):
    with pytest.raises(TimeoutError):
        ledger.once("doubt", lambda: (_ for _ in ()).throw(TimeoutError()))
    with pytest.raises(errors.EffectInDoubt):
        ledger.once("doubt", lambda: pay(connection), connection=connection)

    def outside() -> None:
        with Ledger(url) as other, pytest.raises(errors.EffectBusy):
            other.once("pay", lambda: pay(connection), connection=connection)
        connection.rollback()

    connection.rollback()
    ledger.once("pay", outside)
    assert money(connection) == 0


def test_the_wait_for_another_transaction_is_bounded_and_the_callers_settings_come_back(url, ledger, connection):
    import psycopg

    connection.execute("SET lock_timeout = '7s'")
    connection.commit()
    with psycopg.connect(url) as other:
        ledger.once("pay", lambda: None, connection=other)
        with pytest.raises(errors.EffectBusy):
            ledger.once("pay", lambda: pay(connection), connection=connection, wait_s=0.2)
        connection.rollback()
    ledger.once("second", lambda: pay(connection), connection=connection)
    assert connection.execute("SHOW lock_timeout").fetchone()[0] == "7s"


def test_a_step_without_a_transaction_waits_for_one_with(url, ledger, connection):
    """Longer than one lock is waited for, and the ledger does not seem to be away."""
    results = []
    ledger.once("pay", lambda: pay(connection), connection=connection)
    with Ledger(url, lease_s=0.3, patience_s=0.0) as other:
        waiter = threading.Thread(target=lambda: results.append(other.once("pay", lambda: "twice")))
        waiter.start()
        wait_for(lambda: bool(other.metrics().get("waited")) or not waiter.is_alive())
        connection.commit()
        waiter.join()
    assert results == [5]


def test_lookups_have_no_place_in_a_transaction(ledger, connection):
    with pytest.raises(errors.UsageError):
        ledger.once("a", lambda: None, connection=connection, provider_idempotent=True)


# -- the outbox ---------------------------------------------------------------------------------------------------------------


def test_a_message_leaves_with_the_transaction_or_not_at_all(ledger, connection):
    sent: list[Message] = []
    assert ledger.outbox.put(connection, "mail-1", {"to": "é"})
    connection.commit()
    ledger.outbox.put(connection, "mail-2", {})
    connection.rollback()
    assert ledger.outbox.waiting() == 1
    assert ledger.outbox.relay(sent.append) == 1
    assert ledger.outbox.relay(sent.append) == 0
    assert sent == [Message("mail-1", {"to": "é"}, 0)]


def test_the_same_message_twice_is_one_and_another_with_its_key_is_an_error(ledger, connection):
    assert ledger.outbox.put(connection, "m", {"a": 1, "b": 2})
    assert not ledger.outbox.put(connection, "m", {"b": 2, "a": 1})
    with pytest.raises(errors.EffectChanged):
        ledger.outbox.put(connection, "m", {"a": 2})
    with pytest.raises(errors.UsageError):
        ledger.outbox.put(connection, "n", object())
    with pytest.raises(errors.UsageError):
        ledger.outbox.put(connection, "n", "x" * 100_000)


def test_a_message_that_fails_waits_and_lets_the_others_pass(ledger, connection, monkeypatch):
    monkeypatch.setattr(outbox, "_FIRST_DELAY_S", 600.0)  # a second may be over before the next look
    for key in ("bad", "good"):
        ledger.outbox.put(connection, key, key)
        connection.commit()
    sent = []

    def send(message: Message) -> None:
        if message.key == "bad" and message.tries == 0:
            raise ConnectionError
        sent.append((message.key, message.tries))

    with pytest.raises(ConnectionError):
        ledger.outbox.relay(send)
    assert ledger.outbox.relay(send) == 1
    assert ledger.outbox.relay(send) == 0
    connection.execute("UPDATE perdure.outbox SET not_before_s = not_before_s - 600")
    connection.commit()
    assert ledger.outbox.relay(send) == 1
    assert sent == [("good", 0), ("bad", 1)]


def test_a_relay_that_dies_leaves_its_message_to_the_next_and_two_never_hold_one(url, ledger, connection):
    for number in range(6):
        ledger.outbox.put(connection, f"m{number}", number)
    connection.commit()

    def die(_message: Message) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def free() -> int:
        """Count the messages that no relay holds. The server lets those of a dead one go when it sees that it is gone."""
        found = connection.execute("SELECT key FROM perdure.outbox FOR UPDATE SKIP LOCKED").fetchall()
        connection.rollback()
        return len(found)

    assert exit_status(in_child(lambda: ledger.outbox.relay(die))) == -signal.SIGKILL
    wait_for(lambda: free() == 6)
    sent: list[str] = []
    with Ledger(url) as other:

        def send(message: Message) -> None:
            sent.append(message.key)
            if len(sent) == 1:  # another relay, while this one holds the first message
                other.outbox.relay(lambda second: sent.append(second.key), limit=2)

        assert ledger.outbox.relay(send) == 4
    assert sorted(sent) == [f"m{number}" for number in range(6)]


def test_a_relay_may_itself_do_steps_that_are_durable_before_it_ends(url, ledger, connection):
    ledger.outbox.put(connection, "m", {})
    connection.commit()
    seen = []

    def send(message: Message) -> None:
        ledger.once(f"send-{message.key}", lambda: None)
        with Ledger(url) as other:
            seen.append(other.look("send-m")[1])

    assert ledger.outbox.relay(send) == 1
    assert seen == [State.DONE]


def test_messages_that_were_sent_long_ago_are_forgotten_and_waiting_ones_never(ledger, connection):
    for key in ("a", "b"):
        ledger.outbox.put(connection, key, {"n": 1})
    connection.commit()
    assert ledger.outbox.relay(lambda message: None, limit=1) == 1
    ledger.once("step", lambda: 1)
    assert ledger.prune(3600) == 0
    assert ledger.prune(0, dry_run=True) == 2
    assert ledger.prune(0) == 2
    assert connection.execute("SELECT key FROM perdure.outbox").fetchall() == [("b",)]
    assert ledger.outbox.waiting() == 1


@pytest.mark.parametrize("wait_s", [1e7, float("inf"), 0])
def test_any_time_to_wait_is_taken(ledger, connection, wait_s):
    assert ledger.once("pay", lambda: pay(connection), connection=connection, wait_s=wait_s) == 5
    connection.commit()
    assert money(connection) == 5


# -- the schema ---------------------------------------------------------------------------------------------------------------


def test_an_older_schema_is_brought_up_to_date_and_a_newer_one_is_refused_by_name(url, ledger, connection):
    ledger.once("a", lambda: 1)
    ledger.close()
    connection.execute("DROP TABLE perdure.outbox")
    connection.execute("UPDATE perdure.meta SET version = 1")
    connection.commit()
    with Ledger(url) as upgraded:
        assert upgraded.once("a", lambda: 2) == 1
        assert upgraded.outbox.waiting() == 0
    connection.execute("UPDATE perdure.meta SET version = 99")
    connection.commit()
    with Ledger(url) as old, pytest.raises(errors.LedgerSchema, match="schema 99"):
        old.counts()


def test_a_connection_that_was_cut_is_opened_again(ledger, connection):
    ledger.once("a", lambda: 1)
    connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure-effects'")
    connection.commit()
    assert ledger.once("b", lambda: 2) == 2
    assert ledger.counts()["done"] == 2


def test_no_password_is_ever_shown(server, url):
    address = url.replace("perdure@", "nobody-here:hunt%65r2@")
    with Ledger(address, patience_s=0) as ledger:
        with pytest.raises(errors.LedgerUnavailable) as caught:
            ledger.counts()
        shown = [repr(ledger), str(caught.value), repr(caught.value.__cause__)]
    with pytest.raises(errors.UsageError) as wrong:
        Ledger("postgresql://u:hunter2@h/db?bad=%zz")
    for text in [*shown, str(wrong.value), repr(wrong.value.__cause__)]:
        assert "hunter2" not in text
        assert "hunt%65r2" not in text


def test_the_state_of_a_step_cut_by_another_life_stays_visible(ledger):
    with pytest.raises(OSError, match="net"):
        ledger.once("a", lambda: (_ for _ in ()).throw(OSError("net down")))
    assert [(row.key, row.note, seen) for row, seen in ledger.rows()] == [("a", "raised OSError", State.IN_DOUBT)]
