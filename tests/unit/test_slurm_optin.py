"""The options of an opted-in job: its own words, the site's, and what is left out of them."""

from __future__ import annotations

import pytest

from perdure.agent import wishes
from perdure.slurm import optin


@pytest.mark.parametrize("own", ["", "1", "yes", "true", " on "])
def test_a_job_that_only_opts_in_gets_the_defaults(own):
    chosen = optin.choose(own, ())
    assert (chosen.options, chosen.problems) == ((("before-end", "auto"),), ())


def test_the_jobs_own_options_count_more_than_the_sites():
    chosen = optin.choose("every=10m, keep=2,outputs=/scratch/a,outputs=/scratch/b", ("every=1h", "tcp=keep"))
    kept = wishes.read(chosen.options).options
    assert (kept.every, kept.keep, kept.tcp, kept.outputs, kept.before_end) == (600.0, 2, "keep", ("/scratch/a", "/scratch/b"), "auto")


def test_a_job_may_decide_not_to_leave_early():
    assert wishes.read(optin.choose("before-end=5m", ()).options).options.before_end == 300.0


@pytest.mark.parametrize(
    "word",
    ["foo=1", "every=soon", "keep=0", "keep", "name=slurm-lab-1", "fresh=1", "from=x@1.1", "outputs=relative", "tcp=maybe", "end-ns=5"],
)
def test_what_cannot_be_read_or_is_not_the_jobs_to_say_is_left_out_and_told(word):
    chosen = optin.choose(f"{word},every=5m", ())
    assert len(chosen.problems) == 1
    assert repr(word) in chosen.problems[0]
    assert wishes.read(chosen.options).options.every == 300.0


def test_a_job_may_ask_to_be_told_of_its_checkpoints():
    assert wishes.read(optin.choose("events=1", ()).options).events


def test_a_fault_of_the_sites_is_told_as_such():
    assert optin.choose("", ("every=soon",)).problems[0].startswith("the site's option 'every=soon' is left out: ")
