"""What the doctor reads from Linux about a file's disk and its locks."""

from __future__ import annotations

from pathlib import Path

from stepfast.admin.doctor.sqlite import NETWORK, kind_of_disk, lock_holder

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /home rw - nfs4 server:/home rw
31 30 8:2 / /home/ada/local\\040disk rw - xfs /dev/sdb1 rw
"""

LOCKS = """\
1: POSIX  ADVISORY  READ  100 08:01:77 128 128
2: POSIX  ADVISORY  WRITE 101 08:01:78 120 120
2: -> POSIX  ADVISORY  WRITE 102 08:01:77 120 120
3: POSIX  ADVISORY  WRITE 103 08:01:77 123 123
4: FLOCK  ADVISORY  WRITE 104 08:01:79 0 EOF
5: POSIX  ADVISORY  WRITE 105 08:01:77 120 121
"""


def test_the_innermost_mount_point_tells_the_kind_of_disk() -> None:
    assert kind_of_disk(MOUNTS, Path("/var/lib/work.db")) == "ext4"
    assert kind_of_disk(MOUNTS, Path("/home/ada/work.db")) == "nfs4"
    assert kind_of_disk(MOUNTS, Path("/home/ada/local disk/work.db")) == "xfs"
    assert kind_of_disk(MOUNTS, Path("/homestead/work.db")) == "ext4"
    assert "nfs4" in NETWORK
    assert kind_of_disk("", Path("/work.db")) == ""


def test_the_writer_is_who_locked_the_writers_byte_and_not_who_waits_for_it() -> None:
    assert lock_holder(LOCKS, 77) == 105
    assert lock_holder(LOCKS, 78) == 101
    assert lock_holder(LOCKS, 80) is None
    assert lock_holder("", 77) is None
