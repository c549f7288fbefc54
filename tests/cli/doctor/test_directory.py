import itertools
import os

import pytest

from tf_preempt.cli.doctor.directory import (
    Speed,
    check_shared_by_all,
    check_speed,
    find_directory,
    look_for_proof,
    measure_speed,
    prove_writable,
    remove_proof,
)
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.place import Member

MEMBERS = [Member(task_type="worker", task_id=index, address=f"n{index}:1") for index in range(3)]
SEEN, NOT_SEEN, UNKNOWN = {"shared": True}, {"shared": False}, {"shared": None}


@pytest.mark.parametrize(
    ("given", "environ", "directory", "said"),
    [
        ("/a", {}, "/a", "/a, as given"),
        ("/a/", {"TF_PREEMPT_DIR": "/b"}, "/a", "/a, as given"),
        (None, {"TF_PREEMPT_DIR": "/b"}, "/b", "Checkpoints go to /b (from TF_PREEMPT_DIR)."),
        (None, {"AIP_CHECKPOINT_DIR": "gs://x/y/"}, "gs://x/y", "(from AIP_CHECKPOINT_DIR)"),
        ("/a", {"TF_PREEMPT_DIR_OVERRIDE": "/c"}, "/c", "TF_PREEMPT_DIR_OVERRIDE=/c is used in place of"),
        (None, {}, None, "none was given"),
    ],
)
def test_directory_is_the_one_that_a_training_would_use(given, environ, directory, said):
    found, (finding,) = find_directory(given, environ)
    assert found == directory
    assert finding.status is Status.INFO
    assert said in finding.message
    assert finding.values == {"directory": directory}


def test_a_directory_that_is_made_for_the_proof_goes_with_it(tmp_path):
    proof, _ = prove_writable(str(tmp_path / "a" / "b"))
    assert os.listdir(tmp_path / "a" / "b") == [proof.name]
    proof.remove(also_directory=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("mistyped", Status.INFO),
        ("./mistyped/", Status.INFO),
        ("mistyped/7", Status.WARNING),
        ("./mistyped/7/", Status.WARNING),
        ("mistyped/7/8", Status.WARNING),
    ],
)
def test_a_directory_that_is_not_there_yet_is_no_success_and_names_the_one_that_is(
    tmp_path, monkeypatch, given, status
):
    monkeypatch.chdir(tmp_path)
    proof, finding = prove_writable(given)
    proof.remove(also_directory=True)
    assert finding.status is status
    assert f"{given} does not exist yet; it would be made in {tmp_path}, " in finding.message
    assert "look for a slip in the path" in finding.hint
    assert finding.values == {"directory": given, "existed": False}


def test_a_directory_whose_parent_is_missing_too_is_warned_of_with_the_parents_name(tmp_path):
    proof, finding = prove_writable(str(tmp_path / "rums" / "7"))
    proof.remove(also_directory=True)
    assert finding.hint.endswith(
        f"{tmp_path}/rums does not exist either; if it is right: mkdir -p {tmp_path}/rums"
    )


def test_a_directory_that_is_there_and_takes_files_is_all_right(tmp_path):
    proof, finding = prove_writable(str(tmp_path))
    proof.remove()
    assert (finding.status, finding.message) == (Status.OK, f"{tmp_path} can be written to")
    assert finding.values == {"directory": str(tmp_path), "existed": True}


@pytest.mark.parametrize("below", ["", "/below", "/below/that"])
def test_a_path_with_a_file_in_the_place_of_a_directory_is_an_error_that_says_so(tmp_path, below):
    file = tmp_path / "file"
    file.touch()
    proof, finding = prove_writable(f"{file}{below}")
    assert proof is None
    assert finding.status is Status.ERROR
    assert finding.message == f"{file}{below} cannot be a directory: {file} is a file"
    assert "choose a directory" in finding.hint


def test_a_directory_that_cannot_be_written_to_is_an_error_with_the_cure():
    proof, finding = prove_writable("/proc/self")  # for root, too
    assert proof is None
    assert finding.status is Status.ERROR
    assert "/proc/self cannot be written to" in finding.message
    assert "choose a directory" in finding.hint


def test_a_file_that_cannot_be_deleted_is_an_error_with_its_name(tmp_path):
    proof, _ = prove_writable(str(tmp_path))
    (tmp_path / proof.name).unlink()
    (tmp_path / proof.name).mkdir()
    (finding,) = remove_proof(proof)
    assert (finding.status, finding.name) == (Status.ERROR, "writable")
    assert proof.name in finding.hint


def test_speed_is_measured_with_real_files_that_are_gone_afterwards(tmp_path):
    clock, sizes = itertools.count(), []

    def look():
        sizes.append(sorted(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path)))
        return next(clock)

    speed = measure_speed(str(tmp_path), 3, clock=look)
    assert sizes[0] == []
    assert sizes[1] == [3_000_000]
    assert sizes[-1] == [1024, 3_000_000]
    assert speed == Speed(size_mb=3, large_s=1, small_ms=1000)
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_when_the_disk_is_full(tmp_path):
    clock = iter([0.0])
    with pytest.raises(StopIteration):
        measure_speed(str(tmp_path), 1, clock=lambda: next(clock))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("large_s", "small_ms", "status"),
    [
        (0.5, 5.0, Status.OK),
        (3.2, 1000.0, Status.OK),
        (3.3, 5.0, Status.WARNING),
        (0.5, 1001.0, Status.WARNING),
        (0.0, 0.0, Status.OK),
    ],
)
def test_slow_directories_are_warned_of(large_s, small_ms, status):
    assert check_speed(Speed(size_mb=64, large_s=large_s, small_ms=small_ms)).status is status


def test_speed_is_said_in_mb_per_second_and_milliseconds():
    finding = check_speed(Speed(size_mb=64, large_s=0.5, small_ms=5.25))
    assert finding.message == (
        "64 MB written and flushed in 0.50 s (128 MB/s), a small file committed in 5.2 ms"
    )
    assert finding.values == {"size_mb": 64, "seconds": 0.5, "mb_per_s": 128.0, "small_ms": 5.25}


def test_a_task_that_sees_the_first_ones_file(tmp_path):
    proof, _ = prove_writable(str(tmp_path))
    finding = look_for_proof(str(tmp_path), proof.name, rank=1)
    assert (finding.status, finding.values) == (Status.OK, SEEN)


@pytest.mark.parametrize("told", ["missing", "../proof"])
def test_a_task_that_does_not_see_it_says_so(tmp_path, told):
    (tmp_path / "proof").touch()
    (tmp_path / "own").mkdir()
    finding = look_for_proof(str(tmp_path / "own"), told, rank=1, patience_s=0)
    assert (finding.status, finding.values) == (Status.ERROR, NOT_SEEN)
    assert "Worker 1 does not see" in finding.message
    assert "network file system" in finding.hint


@pytest.mark.parametrize(("directory", "proof"), [(None, "proof"), ("/a", None), ("/a", 5)])
def test_without_a_directory_or_a_file_nothing_is_looked_for(directory, proof):
    finding = look_for_proof(directory, proof, rank=1)
    assert (finding.status, finding.values) == (Status.INFO, UNKNOWN)


@pytest.mark.parametrize(
    ("reports", "status", "said"),
    [
        ({1: SEEN, 2: SEEN}, Status.OK, "all 3 tasks see"),
        ({1: SEEN, 2: NOT_SEEN}, Status.ERROR, "worker 2 on n2 do(es) not see"),
        ({1: UNKNOWN, 2: NOT_SEEN}, Status.ERROR, "worker 2 on n2 do(es) not see"),
        ({1: UNKNOWN, 2: SEEN}, Status.WARNING, "Whether worker 1 on n1 see(s)"),
        ({2: SEEN}, Status.WARNING, "Whether worker 1 on n1 see(s)"),
    ],
)
def test_the_first_task_sums_up_what_the_others_have_seen(reports, status, said):
    finding = check_shared_by_all(MEMBERS, reports, "/a")
    assert finding.status is status
    assert said in finding.message
