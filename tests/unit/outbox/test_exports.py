"""Exported files are replaced whole, in order, and by their owner only."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import Delivered, Failed, Patience
from stepfast.outbox import exports as files
from stepfast.outbox.destinations import DueMessage
from stepfast.outbox.exports import Mark, export_message, problem_of_export, write, write_file

OWNER = "feed catalogue"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "watermark.json"


def put(path: Path, text: str, version: int, made_at: int = 0, owner: str = OWNER) -> Delivered | Failed:
    return write_file(path.as_uri(), text, Mark(owner, version, made_at or version))


def test_the_folder_is_made_and_the_file_written(path: Path) -> None:
    assert put(path, '{"a": 1}', 1) == Delivered()

    assert path.read_text() == '{"a": 1}\n'


def test_a_url_that_cannot_be_read_is_refused_in_words() -> None:
    problem = problem_of_export("http://[::T1]/")

    assert problem is not None
    assert problem.startswith("cannot be read as a URL (")


def test_a_newer_one_replaces_an_older_one(path: Path) -> None:
    put(path, "1", 1)
    put(path, "2", 2)

    assert path.read_text() == "2\n"
    assert sorted(it.name for it in path.parent.iterdir()) == [".watermark.json.stepfast", "watermark.json"]


def test_an_older_one_that_comes_late_changes_nothing(path: Path) -> None:
    put(path, "2", 2)

    assert put(path, "1", 1) == Delivered()
    assert path.read_text() == "2\n"


def test_the_same_one_may_be_written_twice(path: Path) -> None:
    put(path, "2", 2)
    path.unlink()

    put(path, "2", 2)

    assert path.read_text() == "2\n"


def test_a_new_database_that_counts_from_one_again_is_not_taken_for_a_late_one(path: Path) -> None:
    put(path, "old", 57, made_at=1_000)

    put(path, "new", 1, made_at=2_000)

    assert path.read_text() == "new\n"


def test_a_clock_that_was_set_back_does_not_hold_up_the_next_version(path: Path) -> None:
    put(path, "1", 1, made_at=2_000)

    put(path, "2", 2, made_at=1_000)

    assert path.read_text() == "2\n"


def test_a_file_that_belongs_to_another_feed_is_left_alone(path: Path) -> None:
    put(path, "1", 1)

    refused = put(path, "2", 2, owner="feed other")

    assert isinstance(refused, Failed)
    assert refused.patience is Patience.LITTLE
    assert "feed catalogue" in refused.reason
    assert path.read_text() == "1\n"


def test_who_dies_while_writing_leaves_the_whole_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "1", 1)

    def power_cut(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", power_cut)
        failed = put(path, "2", 2)

    assert isinstance(failed, Failed)
    assert path.read_text() == "1\n"
    assert put(path, "0", 0) == Delivered()
    assert path.read_text() == "1\n"
    put(path, "2", 2)
    assert path.read_text() == "2\n"


def test_the_text_is_on_the_disk_before_it_takes_the_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        done.append("fsync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def watched_replace(self: Path, to: Path) -> Path:
        done.append("replace " + self.name)
        return replace(self, to)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    put(path, "1", 1)

    new = done[1].removeprefix("fsync ")
    assert done == ["fsync .watermark.json.stepfast", f"fsync {new}", f"replace {new}", "fsync state"]
    assert re.fullmatch(r"\.watermark\.json\.[0-9a-f]{16}\.new", new)


def test_half_a_mark_is_taken_for_none(path: Path) -> None:
    put(path, "1", 1)
    (path.parent / ".watermark.json.stepfast").write_text('{"owner": "feed cat')

    put(path, "2", 2)

    assert path.read_text() == "2\n"


def test_a_file_that_is_not_ours_is_left_alone_until_somebody_says_otherwise(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("alias ls=ls\n")

    for _ in range(2):
        refused = put(path, "1", 1)
        assert isinstance(refused, Failed)
        assert "was not written by Stepfast" in refused.reason
        assert refused.patience is Patience.LITTLE
    assert path.read_text() == "alias ls=ls\n"

    (path.parent / ".watermark.json.stepfast").touch()
    assert put(path, "1", 1) == Delivered()
    assert path.read_text() == "1\n"


@pytest.mark.parametrize("name", ["watermark.json", ".watermark.json.stepfast"])
@pytest.mark.parametrize("before", ["mine\n", None])
def test_nothing_is_written_through_a_symbolic_link(
    path: Path, tmp_path: Path, name: str, before: str | None
) -> None:
    victim = tmp_path / "authorized_keys"
    path.parent.mkdir()
    if before is not None:
        victim.write_text(before)
    (path.parent / name).symlink_to(victim)

    refused = put(path, "1", 1)

    assert isinstance(refused, Failed)
    assert "symbolic link" in refused.reason
    assert (victim.read_text() if victim.exists() else None) == before


def test_a_mark_with_a_second_name_is_not_written_to(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine\n")
    path.parent.mkdir()
    (path.parent / ".watermark.json.stepfast").hardlink_to(victim)

    refused = put(path, "1", 1)

    assert isinstance(refused, Failed)
    assert victim.read_text() == "mine\n"


def test_a_link_under_the_name_of_the_new_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine\n")
    put(path, "1", 1)
    for name in (".watermark.json.new", f".watermark.json.{16 * 'a'}.new"):
        (path.parent / name).symlink_to(victim)

    assert put(path, "2", 2) == Delivered()

    assert victim.read_text() == "mine\n"
    assert path.read_text() == "2\n"
    assert not path.is_symlink()


def test_what_a_killed_writer_left_is_removed_by_the_next(path: Path) -> None:
    put(path, "1", 1)
    (path.parent / f".watermark.json.{16 * 'a'}.new").write_text("half")
    (path.parent / ".other.json.new").write_text("not ours")

    put(path, "2", 2)

    assert sorted(it.name for it in path.parent.iterdir()) == [
        ".other.json.new",
        ".watermark.json.stepfast",
        "watermark.json",
    ]


def test_of_many_writers_the_newest_one_wins(path: Path) -> None:
    writers = [threading.Thread(target=put, args=(path, str(n), n)) for n in range(1, 30)]
    for it in writers:
        it.start()
    for it in writers:
        it.join()

    assert path.read_text() == "29\n"


def test_a_place_that_cannot_be_written_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    failed = put(tmp_path / "file" / "watermark.json", "1", 1)

    assert isinstance(failed, Failed)
    assert failed.patience is Patience.FULL
    assert str(tmp_path / "file") in failed.reason
    assert put(tmp_path, "1", 1) != Delivered()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "a text such as"),
        (7, "a text such as"),
        ("/var/lib/watermark.json", "no scheme"),
        ("s3://bucket/watermark.json", "begins with s3:"),
        ("ftp://host/watermark.json", "begins with ftp:"),
        ("file://host/watermark.json", "three slashes"),
        ("file:watermark.json", "absolute"),
        ("file:///var/lib/", "absolute"),
        ("file:///var/lib/a%00.json", "absolute"),
        ("file:///var/lib/app/../../../etc/cron.d/x", "absolute"),
        ("file:///var/lib/a.json?x=1", "%3F"),
        ("file:///" + 2_000 * "a", "at most"),
    ],
)
def test_a_place_that_nobody_can_write_to_is_refused(url: Any, problem: str) -> None:
    assert problem in (problem_of_export(url) or "")


def test_a_file_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    url = (tmp_path / "the watermark.json").as_uri()

    assert problem_of_export(url) is None
    assert write(outgoing(url, {"owner": OWNER, "version": "1", "made-at": "1"})) == Delivered()
    assert (tmp_path / "the watermark.json").read_text() == "{}\n"


def test_a_place_that_this_worker_does_not_know_waits_for_one_that_does() -> None:
    answer = write(
        outgoing("blob://account/watermark.json", {"owner": OWNER, "version": "1", "made-at": "1"})
    )

    assert isinstance(answer, Failed)
    assert answer.patience is Patience.FREE


def test_a_message_for_a_place_that_nobody_can_write_to_is_not_made() -> None:
    with pytest.raises(ConfigurationError, match="begins with blob:"):
        export_message("blob://account/watermark.json", "{}", owner=OWNER, version=1, made_at=1)


def test_the_lock_is_given_back_also_when_writing_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "_replace", fails)
        assert put(path, "1", 1) == Failed(f"{path}: No space left on device")

    assert put(path, "1", 1) == Delivered()


def outgoing(url: str, headers: dict[str, str]) -> DueMessage:
    from datetime import timedelta

    return DueMessage("m-1", "export", "export:x", url, "{}", headers, None, None, 0, timedelta(0))
