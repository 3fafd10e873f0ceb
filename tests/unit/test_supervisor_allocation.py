"""What a workload is told of its allocation: for a shell to read, whatever the values hold."""

from __future__ import annotations

import subprocess

from perdure.supervisor import allocation


def test_only_what_describes_the_allocation_is_told_in_order():
    told = allocation.render(
        {"SLURM_JOB_ID": "7", "HOME": "/home/a", "CUDA_VISIBLE_DEVICES": "0,1", "SLURMD_NODENAME": "n2", "MY_SLURM_X": "1"}
    )
    assert told == "CUDA_VISIBLE_DEVICES=0,1\nSLURMD_NODENAME=n2\nSLURM_JOB_ID=7\n"


def test_a_shell_reads_back_what_was_told_and_runs_nothing(tmp_path):
    value = "a b'c\"$(touch ran)`touch ran`\nSLURM_OTHER=1\\"
    epoch_file = tmp_path / "epoch"
    allocation.write(epoch_file, {"SLURM_JOB_NAME": value, "SLURM_X;touch ran": "1"}, None)
    path = tmp_path / allocation.FILE
    assert path.stat().st_mode & 0o777 == 0o400
    done = subprocess.run(
        ["sh", "-c", '. "$0"; printf %s "$SLURM_JOB_NAME"; printf %s "${SLURM_OTHER-none}"', path], cwd=tmp_path, capture_output=True
    )
    assert done.stdout.decode() == value + "none"
    assert not (tmp_path / "ran").exists()


def test_it_is_written_anew_for_each_life(tmp_path):
    for node in ("n1", "n2"):
        allocation.write(tmp_path / "epoch", {"SLURMD_NODENAME": node}, None)
    assert (tmp_path / allocation.FILE).read_text() == "SLURMD_NODENAME=n2\n"
