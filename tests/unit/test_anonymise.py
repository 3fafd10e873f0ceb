"""Anonymising: nothing of the original is left, and everything that an analysis reads is as it was."""

from __future__ import annotations

import datetime
import re

import factories
import hypothesis
import pytest
from hypothesis import strategies as st

from perdure import errors
from perdure.history import names, table
from perdure.history.anonymise import anonymise, key, nodes, proof, pseudonyms, submission, tables, texts, words

KEY = bytes(range(32))
HOSTILE = st.text(st.sampled_from("abé张#0179-_./: e+|\n\x1b'\"<,[]ZA\u202e"), max_size=12)


def make(original=()) -> pseudonyms.Pseudonyms:
    return pseudonyms.Pseudonyms(KEY, original)


def run(tmp_path, rows, **options):
    """Anonymise `rows`; return them as they are afterwards, in the order of their submission, and what was done."""
    connection = table.connect(threads=1)
    factories.fill(connection, rows)
    done = anonymise.anonymise(connection, tmp_path / "out.parquet", key=KEY, **options)
    connection = table.connect(threads=1)
    table.open_attempts(connection, tmp_path / "out.parquet")
    found = connection.execute("SELECT * FROM attempts ORDER BY submit, raw_id, start")
    columns = [column[0] for column in found.description]
    return [dict(zip(columns, row, strict=True)) for row in found.fetchall()], done


# Pseudonyms ------------------------------------------------------------------------------------------------------


@hypothesis.given(st.sets(st.text(max_size=8), max_size=40))
def test_words_are_mapped_one_to_one_and_the_same_again(originals):
    one, two = make(), make()
    new = {text: one.word("user", text) for text in sorted(originals)}
    assert len(set(new.values())) == len(originals)
    assert all(two.word("user", text) == word for text, word in sorted(new.items()))
    assert all(re.fullmatch("[g-z]{10}", word) for word in new.values())


def test_kinds_and_keys_do_not_share_pseudonyms():
    assert make().word("user", "alice") != make().word("account", "alice")
    assert make().word("user", "alice") != pseudonyms.Pseudonyms(bytes(32), ()).word("user", "alice")


def test_a_pseudonym_never_contains_a_word_of_the_original():
    plain = make().word("user", "alice")
    avoiding = make({plain[2:5]}).word("user", "alice")
    assert plain[2:5] not in avoiding


def test_no_room_for_pseudonyms_is_said():
    letters = "ghjkmnpqrstvwxyz"
    with pytest.raises(errors.InputFormat, match="no room"):
        make({a + b + c for a in letters for b in letters for c in letters}).word("user", "alice")


@hypothesis.given(st.sets(st.integers(0, 2**40), max_size=30))
def test_uids_are_mapped_one_to_one_away_from_all_old_ones_and_root_stays(originals):
    new = make().uids(originals)
    assert new[0] == 0
    assert len(set(new.values())) == len(new)
    assert not (set(new.values()) - {0}) & originals


def test_time_is_shifted_by_whole_weeks_that_the_key_decides():
    shifts = {pseudonyms.Pseudonyms(bytes([number] * 32), ()).shift_s() for number in range(40)}
    assert all(shift % (7 * 86400) == 0 and -3650 * 86400 < shift <= -364 * 86400 for shift in shifts)
    assert len(shifts) > 30


# Names and paths -------------------------------------------------------------------------------------------------


@hypothesis.given(st.sets(HOSTILE | st.text(max_size=10), min_size=1, max_size=12))
def test_job_names_stay_as_alike_as_they_were(originals):
    new = texts.rename_jobs(originals, make(), avoid=())
    assert len(set(new.values())) == len(originals)
    pairs = {(names.normalise(old), names.normalise(new[old])) for old in originals}
    assert len({old for old, _ in pairs}) == len({renamed for _, renamed in pairs}) == len(pairs)


@hypothesis.given(st.sets(HOSTILE | st.text(max_size=10), min_size=1, max_size=12))
def test_no_word_of_a_job_name_is_left(originals):
    secret = {word for name in originals for word in words.revealing(name)}
    new = texts.rename_jobs(originals, make(secret), avoid=())
    assert not secret & {word for name in new.values() for word in words.spans(name)}


def test_separators_and_the_order_of_counters_stay():
    new = texts.rename_jobs(["run_9", "run_10", "sweep-lr3e-4|seed7"], make(), avoid={1})
    assert re.fullmatch(r"[g-z]{10}_2", new["run_9"])
    assert re.fullmatch(r"[g-z]{10}_3", new["run_10"])
    assert re.fullmatch(r"[g-z]{10}-[g-z]{10}2\|[g-z]{10}0", new["sweep-lr3e-4|seed7"])


@hypothesis.given(st.sets(st.text(st.sampled_from("ab/.é~ "), max_size=10), max_size=10))
def test_paths_stay_apart_and_keep_their_folders(originals):
    map_ = make()
    new = {text: texts.path(text, map_) for text in sorted(originals)}
    assert len(set(new.values())) == len(originals)
    assert all(old.count("/") == renamed.count("/") for old, renamed in new.items())


def test_public_gpu_models_stay_and_others_do_not():
    assert texts.gpu_model("nvidia_a100-sxm4-80gb", make()) == "nvidia_a100-sxm4-80gb"
    assert texts.gpu_model("smiths-a100", make()) != "smiths-a100"
    assert texts.state("NODE_FAIL", make()) == "NODE_FAIL"
    assert "BOB" not in texts.state("BOB_BROKE_IT", make())


# Nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu[001-003,7]", ["gpu001", "gpu002", "gpu003", "gpu7"]),
        ("a1,b[1-2]x", ["a1", "b1x", "b2x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("n[1-", ["n[1-"]),
        ("n[3-1]", ["n[3-1]"]),
        ("n[1-999999999]", ["n[1-999999999]"]),
        ("n[[1]]", ["n[[1]]"]),
    ],
)
def test_lists_are_expanded_as_slurm_does(text, expected):
    assert nodes.expand(text) == expected


@hypothesis.given(st.sets(st.integers(0, 40), min_size=1), st.sampled_from(["gpu", "r1i2n", "é"]), st.booleans())
def test_a_list_keeps_its_number_of_nodes(numbers, stem, several):
    text = f"{stem}[{','.join(map(str, sorted(numbers)))}]" + (",login1" if several else "")
    members = nodes.expand(text)
    new = nodes.rename(members, make(), avoid=())
    again = nodes.expand(nodes.rewrite(text, new))
    assert len(set(again)) == len(members) == len(numbers) + several


def test_nodes_are_numbered_alike_in_all_lists_and_without_their_racks():
    new = nodes.rename(["r1n10", "r1n2", "r7n1", "login"], make(), avoid={2})
    stem = new["r1n2"][0]
    assert [new[name] for name in ("r1n2", "r1n10", "r7n1")] == [(stem, 1), (stem, 3), (stem, 4)]
    assert nodes.rewrite("r1n[2,10],r7n1", new) == f"{stem}[1,3-4]"
    assert new["login"][0] != stem


@hypothesis.given(st.text(st.sampled_from("n1[]-,0é"), max_size=14))
def test_any_text_is_taken_for_a_list_without_a_crash(text):
    new = nodes.rename(nodes.expand(text), make(), avoid=())
    assert isinstance(nodes.rewrite(text, new), str)


# Submissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (
            "sbatch --time=1-00:00:00 -N 4 --gpus-per-node a100:8 --mem=400G run.sh --resume alice",
            r"sbatch --time=1-00:00:00 --nodes 4 --gpus-per-node a100:8 --mem=400G W",
        ),
        ("sbatch -n4 --requeue --exclusive --signal=B:USR1@120 x", "sbatch --ntasks=4 --requeue --exclusive --signal=B:USR1@120 W"),
        ("sbatch --dependency=afterok:12:13_4?afterany:99 x", "sbatch --dependency=afterok:1012:1013_4[?]afterany:W W"),
        ("sbatch -d singleton --gres=gpu:h100:2,license:matlab:1 x", "sbatch --dependency singleton --gres=gpu:h100:2,W W"),
        ("sbatch --comment=grant-77 --mail-user alice@site.org --wrap python secret.py", "sbatch --comment=W --mail-user W --wrap"),
        ("sbatch --bobs-option=3 --signal=ALICE@9", "sbatch --W --signal=W"),
        ("/home/alice/bin/submit --time=5 x", "W --time=5 W"),
        ("sbatch run.sh --signal=later", "sbatch W --signal"),
        ("", ""),
    ],
)  # fmt: skip
def test_of_a_submission_only_what_is_public_stays(text, pattern):
    new = submission.Rewriter(make(), {12: 1012, 13: 1013}).rewrite(text)
    assert re.fullmatch(pattern.replace("W", "[g-z]{10}"), new), new


@hypothesis.given(st.text(st.sampled_from("abcé -=:,12N"), max_size=40))
def test_no_word_of_a_hostile_submission_is_left(text):
    secret = words.revealing(text) - words.public()
    new = submission.Rewriter(make(secret), {}).rewrite("sbatch " + text)
    assert not secret & words.spans(new)


# The whole -------------------------------------------------------------------------------------------------------


def history() -> list[dict]:
    """A requeue, an array, a group, a dependency, operators and users who cancel."""
    common = {
        "cluster": "Vulcan",
        "account": "proj-a17",
        "partition": "gpuq,smithlab",
        "qos": "vip",
        "work_dir": "/scratch/alice/llama",
        "node_list": "vulcan[001-004]",
        "db_index": 1,
    }
    submit = "sbatch --time=60 --dependency=afterok:120 -A proj-a17 train.sh --user alice"
    return [
        factories.row(0, 1, job_id="120", state="NODE_FAIL", outcome="infrastructure", failed_node="vulcan002", **common),
        factories.row(2, 1, job_id="120", **common | {"db_index": 2}),
        factories.row(3, 1, job_id="130_4", raw_id="131", array_job=130, array_task=4, name="llama_4", **common | {"db_index": 3}),
        factories.row(4, 1, job_id="140+1", raw_id="141", het_job=140, het_offset=1, **common | {"db_index": 4}),
        factories.row(5, 1, job_id="150", depends_on="120", submit_line=submit, **common | {"db_index": 5}),
        factories.row(6, 1, job_id="160", state="CANCELLED", canceller_uid=1000, outcome="user_cancel", **common | {"db_index": 6}),
        factories.row(7, 1, job_id="170", state="CANCELLED", canceller_uid=0, outcome="operator_cancel", **common | {"db_index": 7}),
        factories.row(8, 1, job_id="130_[5-9%2]", raw_id="130", array_job=130, array_tasks=5, state="PENDING", **common | {"db_index": 9}),
    ]


def test_structure_is_kept(tmp_path):
    rows, done = run(tmp_path, history())
    lost, again, task, group, dependent, own, operator, pending = rows
    assert done.rows == len(rows) == 8
    assert lost["raw_id"] == again["raw_id"]
    assert lost["db_index"] < again["db_index"]
    ids = [int(row["raw_id"]) for row in (lost, pending, task, group, dependent, own, operator)]
    assert ids == sorted(ids)
    assert min(ids) > tables.FIRST_ID
    assert (task["job_id"], task["array_task"]) == (f"{task['array_job']}_4", 4)
    assert pending["job_id"] == f"{pending['array_job']}_[5-9%2]"
    assert pending["array_job"] == task["array_job"]
    assert (group["job_id"], group["het_offset"]) == (f"{group['het_job']}+1", 1)
    assert dependent["depends_on"] == lost["raw_id"]
    assert f"--dependency=afterok:{lost['raw_id']} " in dependent["submit_line"]
    assert own["canceller_uid"] == own["uid"] not in {0, 1000}
    assert operator["canceller_uid"] == 0
    assert len(nodes.expand(lost["node_list"])) == 4
    assert lost["failed_node"] in nodes.expand(lost["node_list"])
    assert {row["source"] for row in rows} == {row["line"] for row in rows} == {None}
    assert lost["partition"].count(",") == 1


def test_times_keep_weekday_hour_and_distance(tmp_path):
    rows, _ = run(tmp_path, history())
    for old, new in zip(history(), rows, strict=True):
        shift = old["submit"] - new["submit"]
        assert shift.total_seconds() % (7 * 86400) == 0
        assert shift >= datetime.timedelta(days=364)
        assert (old["start"] - new["start"], old["end"] - new["end"]) == (shift, shift)
    kept = ["elapsed_s", "limit_s", "nodes", "cpus", "gpus", "state", "outcome", "exit_code", "array_tasks", "gpu_source"]
    assert [[row[name] for name in kept] for row in rows] == [[row[name] for name in kept] for row in history()]


def test_no_word_of_the_original_is_in_the_file(tmp_path):
    run(tmp_path, history())
    content = " ".join(str(value) for row in run(tmp_path, history())[0] for value in row.values()).casefold()
    for word in ("alice", "vulcan", "llama", "physics", "proj", "a17", "smithlab", "gpuq", "vip", "scratch", "train", "factory", "1000 "):
        assert word not in content


def test_the_same_key_gives_the_same_again_and_another_does_not(tmp_path):
    first, _ = run(tmp_path, history())
    second, _ = run(tmp_path, history())
    assert first == second
    connection = table.connect(threads=1)
    factories.fill(connection, history())
    anonymise.anonymise(connection, tmp_path / "other.parquet", key=key.make())
    connection.execute(f"SELECT \"user\" FROM read_parquet('{tmp_path}/other.parquet')")
    assert connection.fetchone()[0] != first[0]["user"]


@hypothesis.settings(max_examples=12, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None)
@hypothesis.given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("user", "account", "partition", "qos", "cluster", "name", "work_dir", "submit_line"), HOSTILE),
                **dict.fromkeys(("node_list", "failed_node", "gpu_type", "state", "state_flags", "depends_on", "raw_id"), HOSTILE),
                "job_id": st.sampled_from(["7", "8_2", "9+1", "application_1506_01", "10_[1-3]", "7"]),
                "uid": st.sampled_from([0, 1, 123, 70001, 4294967294]),
                "canceller_uid": st.sampled_from([0, 1, 123, 555]),
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_hostile_histories_pass_the_proof(tmp_path, changes):
    rows, done = run(tmp_path, [factories.row(number, 1, **change) for number, change in enumerate(changes)])
    assert len(rows) == len(changes)
    for old, new in zip(changes, rows, strict=True):
        assert (old.get("canceller_uid") == 0) == (new["canceller_uid"] == 0)
        assert (old.get("canceller_uid") is None) == (new["canceller_uid"] is None)
    assert done.proof.texts > 0


@pytest.mark.parametrize(
    ("column", "leak"),
    [
        ("account", "alice"),
        ("name", "x-ALICE-3"),
        ("work_dir", "/q/llama"),
        ("submit_line", "sbatch --comment=vulcan"),
        ("node_list", "vulcan001"),
        ("uid", 1000),
        ("canceller_uid", 1000),
        ("raw_id", "120"),
        ("array_job", 130),
        ("db_index", 2),
        ("name", "user-1000"),
    ],
)
def test_the_proof_finds_what_is_left(tmp_path, column, leak):
    connection = table.connect(threads=1)
    factories.fill(connection, history())
    originals, uids = tables.read_words(connection), tables.read_uids(connection)
    made = tables.Tables(connection, make(originals), uids)
    made.build()
    query = made.query(coarsen=False)
    connection.execute(f"CREATE TEMP TABLE good AS {query}")
    proof.check(connection, "good", originals=originals, uids=uids)
    connection.execute(
        f'CREATE TEMP TABLE bad AS SELECT * REPLACE (CASE WHEN het_job IS NOT NULL THEN ? ELSE "{column}" END AS "{column}") FROM good',
        [leak],
    )
    with pytest.raises(errors.Findings, match="original"):
        proof.check(connection, "bad", originals=originals, uids=uids)


def test_a_failed_proof_writes_nothing(tmp_path, monkeypatch):
    connection = table.connect(threads=1)
    factories.fill(connection, history())
    monkeypatch.setattr(texts, "path", lambda text, _pseudonyms: text)
    with pytest.raises(errors.Findings, match="work_dir"):
        anonymise.anonymise(connection, tmp_path / "out.parquet", key=KEY)
    assert list(tmp_path.iterdir()) == []


def test_sizes_of_one_user_alone_are_counted_and_rounded_when_asked(tmp_path):
    rows = [
        factories.row(0, 1, job_id="1", user="a"),
        factories.row(1, 1, job_id="2", user="b"),
        factories.row(2, 1, job_id="3", user="c", gpus=96.0, nodes=12, node_list="n[1-12]"),
    ]
    kept, done = run(tmp_path, rows)
    assert (done.unique_sizes, done.unique_size_attempts, kept[2]["gpus"]) == (1, 1, 96)
    rounded, done = run(tmp_path, rows, coarsen=True)
    assert done.coarsened
    assert (rounded[2]["gpus"], rounded[2]["nodes"], rounded[2]["node_list"]) == (128, 16, None)
    assert rounded[0]["gpus"] == 8


def test_a_history_without_attempts_is_said(tmp_path):
    with pytest.raises(errors.InputEmpty):
        run(tmp_path, [])


# The key ---------------------------------------------------------------------------------------------------------


def test_a_key_file_is_made_once_privately_and_used_again(tmp_path):
    path = tmp_path / "key"
    first = key.load_or_make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.load_or_make(path) == first
    assert len(first) == 32
    assert first != key.make()


def test_a_key_that_others_may_read_or_that_is_none_is_refused(tmp_path):
    path = tmp_path / "key"
    key.load_or_make(path)
    path.chmod(0o644)
    with pytest.raises(errors.InputDenied, match="others may read"):
        key.load_or_make(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(errors.InputFormat):
        key.load_or_make(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(errors.InputDenied):
        key.load_or_make(link)
    with pytest.raises(errors.OutputError):
        key.load_or_make(tmp_path / "none" / "key")
