"""What strace writes, read."""

from __future__ import annotations

from edgellm.runtime.proving.tracing import read_trace, strace_command

LINES = """\
4711  socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC|SOCK_NONBLOCK, 0) = 3
4711  connect(3, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 110) = -1 ENOENT (No such file)
4712  socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_IP) = -1 EPERM (Operation not permitted)
4711  socket(AF_INET6, SOCK_DGRAM, IPPROTO_IP <unfinished ...>
4712  +++ killed by SIGABRT +++
4711  <... socket resumed>)                = 5
4711  connect(5, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.0.0.1")}, 16) = 0
4713  socket(AF_INET, SOCK_STREAM, 0 <unfinished ...>
what is no line of a call
4711  +++ exited with 0 +++
"""


def test_calls_are_told_apart() -> None:
    """By family, and what was denied from what was not; cut ones are joined, or count as they are."""
    traced = read_trace(LINES.splitlines())
    assert (traced.n_calls, traced.n_denied) == (6, 1)
    assert [call.partition("(")[0] for call in traced.internet] == ["socket", "connect", "socket"]
    assert traced.internet[0].endswith("= 5")


def test_nothing_is_nothing() -> None:
    """A program without a call has none."""
    assert read_trace([]) == read_trace(["12  +++ exited with 0 +++"])
    assert read_trace([]).internet == ()


def test_without_strace_there_is_no_command(tmp_path, monkeypatch) -> None:
    """It is looked for where programs are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert strace_command(tmp_path / "log") is None
    (tmp_path / "strace").touch(mode=0o755)
    command = strace_command(tmp_path / "log")
    assert command is not None
    assert command[0] == str(tmp_path / "strace")
