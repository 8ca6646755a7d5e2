"""Canaries in every prompt, a live sink to take them, and every way for this machine to fail.

What is sent is seen in three ways that know nothing of our code: by the sink, by the kernel's counter of
a network namespace to which all addresses lead, and by strace. The same runs where sending is allowed
must be seen by each of them: without that, silence proves nothing.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import Mode
from edgellm.runtime.proving.canary import Canary
from edgellm.runtime.proving.orders import Order, Played
from edgellm.runtime.proving.running import Children, Ran
from edgellm.runtime.proving.scenarios import OTHER_DEATHS, TRIGGERS, UNDISTURBED, named
from edgellm.runtime.proving.sink import Sink
from edgellm.runtime.proving.statements import has_leaked
from edgellm.runtime.proving.tiny import write_tiny_model
from edgellm.runtime.routes import RouteWishes, with_routes
from edgellm.runtime.session import SessionOptions

QUICK = tuple(one.code for one in TRIGGERS if not one.is_slow)
SLOW = tuple(one.code for one in TRIGGERS if one.is_slow)
DEATHS = tuple(one.code for one in OTHER_DEATHS)
CLOSED = (Mode.PRIVATE, Mode.OFFLINE)
RAN = {
    Mode.PRIVATE: (UNDISTURBED.code, *QUICK),
    Mode.OFFLINE: (UNDISTURBED.code, "M3"),
    Mode.PREFER_LOCAL: ("M1", "M3", "C1", "D1", "U1"),
}
"""What the default run plays; the whole matrix is `full`."""

VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    *("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_API_KEY"),
    *(
        "LLM_ENDPOINT",
        "OLLAMA_HOST",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "REDIS_URL",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    *(
        "SENTRY_DSN",
        "LANGCHAIN_ENDPOINT",
        "LANGCHAIN_TRACING_V2",
        "WANDB_API_KEY",
        "WANDB_BASE_URL",
    ),
)
OURS = (
    "MODE",
    "ENDPOINT",
    "ENDPOINT_URL",
    "URL",
    "CLOUD",
    "FALLBACK",
    "API_KEY",
    "CONSENT",
    "ONLINE",
)
STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@dataclasses.dataclass
class Theatre:
    """Plays scenarios in children, all with one canary."""

    folder: Path
    model: Path
    canary: Canary
    children: Children

    def play(
        self, name: str, mode: Mode, codes: tuple[str, ...], *, url: str = "", **how: object
    ) -> Ran:
        """Play scenarios in a mode; with a URL the sink is somebody else's, and the network ours."""
        order = Order(
            *(mode.value, codes, str(self.folder / name), str(self.model), self.canary.text),
            apart=not url,
            sink_url=url,
        )
        ran = self.children.run(order, **how)
        assert not ran.report.code, ran.report.message
        return ran


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    folder = tmp_path_factory.mktemp("canary")
    model = folder / "tiny.gguf"
    write_tiny_model(model)
    with Children() as children:
        yield Theatre(folder, model, Canary.new(), children)


@pytest.fixture(scope="module")
def ran(theatre: Theatre) -> dict[Mode, Ran]:
    """The default plays, in three processes side by side."""
    with ThreadPoolExecutor(3) as pool:
        futures = {
            mode: pool.submit(theatre.play, mode.value, mode, codes) for mode, codes in RAN.items()
        }
        return {mode: future.result() for mode, future in futures.items()}


def hold_back(ran: Ran, codes: tuple[str, ...], mode: Mode) -> None:
    """Check that every scenario came to an end of its own, and that nothing left on the way."""
    assert [one.code for one in ran.report.played] == [*codes]
    for played in ran.report.played:
        assert not has_leaked(played), played
        assert (played.mode, played.forms, played.n_connections) == (mode.value, (), 0)
        assert played.n_sent_bytes == (0 if ran.report.counts else None)
        assert played.ended


@pytest.mark.parametrize("mode", CLOSED)
def test_g1_nothing_leaves_in_a_closed_mode_whatever_happens(ran, mode: Mode):
    """In `private` mode no byte of the prompt, history, system prompt or output leaves the process
    tree: not by any trigger, though an endpoint, a key and a consent are there.
    """
    hold_back(ran[mode], RAN[mode], mode)


def test_a5_the_same_harness_finds_the_canary_where_it_may_leave(ran):
    """In `prefer-local` each trigger sends it out: sink, kernel and search see it, and the log says so."""
    for played in ran[Mode.PREFER_LOCAL].report.played:
        scenario = named(played.code)
        assert (played.route, played.forms) == ("cloud", ("raw",)), played
        assert played.n_received_bytes > 0
        if ran[Mode.PREFER_LOCAL].report.counts:
            assert (played.n_sent_bytes or 0) > played.n_received_bytes
        assert (played.n_records, played.n_connections) == (1, 1)
        assert played.n_switches >= 1
        assert scenario.trigger is not None
        # A model that is not there is known before there is anything to fail.
        assert played.trigger == (scenario.trigger.value if scenario.has_model else "")


def test_g11_each_turn_has_exactly_one_record(ran):
    """Each served turn has exactly one audit record, a failed one as well; what was refused at the
    opening was no turn.
    """
    for played in [one for mode in ran for one in ran[mode].report.played]:
        was_turn = bool(played.n_text or played.route or played.trigger)
        assert played.n_records == was_turn, played


@pytest.mark.full
@pytest.mark.parametrize("mode", CLOSED)
def test_g1_no_end_of_a_worker_sends_anything(theatre, mode: Mode):
    """In `private` mode no byte leaves the process tree, however and whenever the worker ends."""
    codes = (*DEATHS, *QUICK, *SLOW)
    hold_back(theatre.play(f"all-{mode.value}", mode, codes), codes, mode)


@pytest.mark.full
def test_a5_every_trigger_is_seen_to_leave(theatre):
    """Those that take their time among them: found at the sink where sending is allowed."""
    codes = (*QUICK, *SLOW)
    played = theatre.play("control-all", Mode.PREFER_LOCAL, codes).report.played
    assert [(one.code, one.route, one.forms) for one in played] == [
        (code, "cloud", ("raw",)) for code in codes
    ]


@STRACE
@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        (Mode.OFFLINE, (UNDISTURBED.code, "M3")),
        pytest.param(Mode.OFFLINE, (UNDISTURBED.code, *QUICK, *SLOW), marks=pytest.mark.full),
        pytest.param(Mode.PRIVATE, (UNDISTURBED.code, *QUICK, *SLOW), marks=pytest.mark.full),
    ],
)
def test_g2_offline_makes_no_internet_call(theatre, mode: Mode, codes: tuple[str, ...]):
    """In `offline` mode the process makes no AF_INET/AF_INET6 syscall, DNS included. A worker's own
    try of the filter, which is denied, is the only one that strace sees.
    """
    with Sink() as sink:
        ran = theatre.play(f"traced-{mode.value}", mode, codes, url=sink.url, with_strace=True)
        assert (sink.n_connections, sink.received) == (0, b"")
    assert ran.traced is not None
    assert ran.traced.internet == ()
    assert ran.traced.n_denied >= 1
    assert [one.code for one in ran.report.played] == [*codes]


@STRACE
def test_g2_strace_sees_what_is_sent(theatre):
    """The control: one answer that an endpoint makes is an internet call, and the sink has it."""
    with Sink() as sink:
        ran = theatre.play(
            "traced-control", Mode.PREFER_LOCAL, ("U1",), url=sink.url, with_strace=True
        )
        assert theatre.canary.hits(sink.received) == ("raw",)
    assert ran.traced is not None
    assert any("connect(" in call for call in ran.traced.internet)


@pytest.fixture
def cut_off() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `edgellm` in a network namespace that has nothing, made by another program than ours."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--net"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False).returncode
    ):
        pytest.skip("no network namespace can be made by unshare(1) here")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*unshare, sys.executable, "-m", "edgellm", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    return run


COMMANDS = (
    (0, "run", "--mode", "offline", "-n", "4", "{model}", "Hello"),
    (0, "plan", "{model}"),
    (0, "info", "{model}"),
    (0, "snapshots", "ls"),
    (3, "run", "--mode", "offline", "{model}.missing", "Hello"),
)


@pytest.mark.parametrize(
    ("code", "command"),
    [
        *((words[0], words[1:]) for words in COMMANDS[:1]),
        *(pytest.param(words[0], words[1:], marks=pytest.mark.full) for words in COMMANDS[1:]),
    ],
)
def test_g2_commands_work_without_a_network(theatre, cut_off, code: int, command: tuple[str, ...]):
    """In `offline` mode nothing waits for a network or misses it: F-PK-05 as well."""
    done = cut_off(*(word.format(model=theatre.model) for word in command))
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.full
def test_g2_the_tests_of_running_pass_without_a_network():
    """In `offline` mode the process makes no AF_INET/AF_INET6 syscall: nor do our own tests of it."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--net"]
    root = Path(__file__).resolve().parents[2]
    tests = (
        "tests/unit/runtime/supervising/test_deaths_survived.py",
        "tests/unit/runtime/test_local.py",
    )
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def poisoned(url: str) -> dict[str, str]:
    """Return an environment in which every name that anybody might listen to names the sink."""
    names = {**dict.fromkeys(VARIABLES, url), **{f"EDGELLM_{name}": url for name in OURS}}
    return {**os.environ, **names, "NO_PROXY": "", "no_proxy": ""}


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        (Mode.PRIVATE, ("M3",)),
        pytest.param(Mode.PRIVATE, (*QUICK, *SLOW), marks=pytest.mark.full),
        pytest.param(Mode.OFFLINE, QUICK, marks=pytest.mark.full),
    ],
)
def test_g5_no_variable_key_or_proxy_opens_a_route(theatre, mode: Mode, codes: tuple[str, ...]):
    """Setting any env var, API key or proxy does not turn a local route into a cloud route."""
    with Sink() as sink:
        ran = theatre.play(
            f"poisoned-{mode.value}", mode, codes, url=sink.url, environ=poisoned(sink.url)
        )
        assert (sink.n_connections, sink.received) == (0, b"")
    assert all(one.route != "cloud" and one.mode == mode.value for one in ran.report.played)


def test_g5_no_proxy_sees_what_goes_to_loopback(theatre):
    """Setting a proxy does not lead what is sent to an endpoint on this machine past another one."""
    with Sink() as endpoint, Sink() as proxy:
        ran = theatre.play(
            "proxied", Mode.PREFER_LOCAL, ("U1",), url=endpoint.url, environ=poisoned(proxy.url)
        )
        assert ran.report.played[0].route == "cloud"
        assert theatre.canary.hits(endpoint.received) == ("raw",)
        assert (proxy.n_connections, proxy.received) == (0, b"")


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from([*VARIABLES, *(f"EDGELLM_{name}" for name in OURS)]),
            st.from_regex(r"(EDGELLM|OPENAI|LLM|HTTP)_[A-Z_]{1,20}", fullmatch=True),
        ),
        st.sampled_from(
            ["http://127.0.0.1:9/v1", "prefer-cloud", "prefer-local", "1", "yes", "sk-live-123"]
        ),
        max_size=8,
    )
)
def test_g5_options_are_the_same_in_any_environment(names: dict[str, str]):
    """Setting any env var, API key or proxy does not turn a local route into a cloud route."""
    for known in ("EDGELLM_HOME", "EDGELLM_OFFLINE"):  # the one that closes routes may close them
        names.pop(known, None)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        options = with_routes(SessionOptions(), RouteWishes())
    assert (options.mode, options.cloud) == (Mode.PRIVATE, None)


@pytest.mark.usefixtures("ran")
def test_g12_nothing_that_was_written_holds_the_canary(theatre):
    """Audit, logs, crash dumps and snapshots contain no prompt canary."""
    written = [path for path in theatre.folder.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in written}
    assert {".jsonl", ".ekv", ".json", ".toml"} <= kinds, "the plays wrote less than they should"
    assert theatre.canary.hits_below(theatre.folder) == ()


def test_g12_nothing_that_was_printed_holds_the_canary(theatre, ran):
    """Logs at their most talkative, messages and the last words of workers contain no prompt canary."""
    for mode, one in ran.items():
        assert theatre.canary.hits(one.printed) == (), mode
    # Not for want of talk: what an endpoint is asked is logged, without what it is asked.
    assert b"DEBUG" in ran[Mode.PREFER_LOCAL].printed


def test_g12_workers_that_die_leave_no_core_file(theatre, ran):
    """Crash dumps contain no prompt canary: there are none, though the shell would allow them."""
    report = theatre.play("looked-at", Mode.PRIVATE, ()).report
    assert {"no core files", "not traceable"} <= {*report.measures}
    root = Path(__file__).resolve().parents[2]
    folders = (theatre.folder, root)
    assert [p for folder in folders for p in folder.glob("core*") if p.is_file()] == []
    assert any(one.ended == "out_of_memory" for one in ran[Mode.PRIVATE].report.played)


def test_g12_the_search_finds_what_is_there(theatre, tmp_path):
    """The control of the search: the canary in a file, in its name, or packed, is found."""
    said = theatre.canary.text
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "audit.jsonl").write_text(f'{{"prompt": "{said}"}}', encoding="utf-8")
    (tmp_path / said.replace(" ", "_")).touch()
    found = theatre.canary.hits_below(tmp_path)
    assert len(found) == 2
    assert all(line.endswith("raw") for line in found)


def test_a_leak_is_called_one():
    """Each sign by itself is a leak: a connection, a byte, a form of the canary, a route."""
    kept = Played("M3", "private", "out_of_memory", n_sent_bytes=0)
    assert not has_leaked(kept)
    signs = {"n_connections": 1, "n_received_bytes": 1, "n_sent_bytes": 1, "forms": ("hex",)}
    for name, value in {**signs, "route": "cloud"}.items():
        assert has_leaked(dataclasses.replace(kept, **{name: value})), name
