"""What is watched is called, and nothing else: numbers of descriptors are given out again and again."""

from __future__ import annotations

import contextlib
import os

from perdure.supervisor.reactor import READ, Reactor


def test_a_number_that_was_closed_and_given_out_again_is_watched():
    with contextlib.closing(Reactor()) as reactor:
        called = []
        reader, writer = os.pipe()
        reactor.watch(reader, READ, lambda: called.append("first"))
        os.close(reader)
        os.close(writer)

        again, writer = os.pipe()
        assert again == reader
        reactor.watch(again, READ, lambda: called.append("second"))
        os.write(writer, b"x")
        reactor.after(30.0, lambda: called.append("nothing came"))
        reactor.turn()
        assert called == ["second"]

        reactor.watch(again, READ, lambda: called.append("third"))
        reactor.turn()
        assert called == ["second", "third"]
        reactor.forget(again)
        os.close(again)
        os.close(writer)


def test_what_a_call_of_the_same_turn_forgot_is_not_called():
    with contextlib.closing(Reactor()) as reactor:
        called = []
        pipes = [os.pipe() for _ in range(2)]

        def one(number: int) -> None:
            called.append(number)
            reactor.forget(pipes[1 - number][0])

        for number, (reader, writer) in enumerate(pipes):
            reactor.watch(reader, READ, lambda number=number: one(number))
            os.write(writer, b"x")
        reactor.turn()
        assert len(called) == 1
        for descriptor in (end for pipe in pipes for end in pipe):
            os.close(descriptor)
