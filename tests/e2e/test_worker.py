"""A real model in a worker: the same answers as in this process, whatever becomes of the worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edgellm.core import Done, Message, Request, Sampling, Tier, Token
from edgellm.errors import Cancelled, EngineFailed, ModelNotFound, UsageError
from edgellm.paths import KEY_FILE_VARIABLE
from edgellm.runtime.local import open_session
from edgellm.runtime.session import SessionOptions, Step
from edgellm.runtime.worker import frames
from edgellm.runtime.worker.calls import CANCEL_S
from edgellm.runtime.worker.ending import WorkerEnded
from edgellm.runtime.worker.faults import FAULT_VARIABLE
from edgellm.runtime.worker.handle import CLOSE_S, Worker
from edgellm.runtime.worker.hardening import MEASURES

SYSTEM = Message("system", "You know rivers, and all that lies beside them. " * 14)
QUESTION = (SYSTEM, Message("user", "Tell a long story of two rivers that end in a lake."))
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(seed=7, repeat_penalty=1.1)
N = 24
OFF = SessionOptions(snapshot=Tier.OFF)
EXACT = SessionOptions(snapshot=Tier.EXACT)
pytestmark = pytest.mark.model
FULL = pytest.mark.full
LINUX = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def _request(sampling: Sampling = GREEDY, **how: Any) -> Request:
    return Request(QUESTION, sampling=sampling, **{"max_tokens": N, **how})


@pytest.fixture
def start(smollm2_gguf):
    """Start workers, and close them."""
    workers: list[Worker] = []

    def begin(options: SessionOptions = OFF, path: Path = smollm2_gguf, **how: Any) -> Worker:
        workers.append(Worker.start(path, options, **how))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()


@pytest.fixture(scope="module")
def whole(smollm2_gguf):
    """Answer in this process; by sampling, text and tokens of the undisturbed answer."""
    answers = {}
    with open_session(smollm2_gguf, OFF) as session:
        for sampling in (GREEDY, SAMPLED):
            steps = list(session.steps(_request(sampling)))
            answers[sampling] = (steps[-1].event, [id_ for step in steps for id_ in step.ids])
            session.engine.truncate(0)
            session._answers.live = None
    return answers


def _text(steps: list[Step]) -> str:
    return "".join(step.event.text for step in steps if isinstance(step.event, Token))


def _ids(steps: list[Step]) -> list[int]:
    return [one for step in steps for one in step.ids]


@pytest.mark.parametrize(
    "sampling", [pytest.param(GREEDY, marks=FULL), SAMPLED], ids=["greedy", "sampled"]
)
def test_a_worker_answers_as_this_process_does(start, whole, sampling):
    """Text, tokens, counts and the end of an answer are the same on either side of the pipe."""
    done, ids = whole[sampling]
    steps = list(start().stream(_request(sampling)))
    assert ids == _ids(steps)
    assert done.text == _text(steps) == steps[-1].event.text
    assert (done.finish_reason, done.usage) == (
        *(steps[-1].event.finish_reason, steps[-1].event.usage),
    )
    assert [*range(len(ids))] == [s.event.seq for s in steps if isinstance(s.event, Token)]


@LINUX
@pytest.mark.parametrize(
    "sampling", [pytest.param(GREEDY, marks=FULL), SAMPLED], ids=["greedy", "sampled"]
)
def test_g6_an_answer_goes_on_after_a_kill_at_any_token(start, whole, sampling):
    """Killing the worker at any token never kills the host, and the answer ends as it would have."""
    done, ids = whole[sampling]
    worker = start()
    n_all = len(ids)
    between = Random(3).randrange(2, n_all - 1)
    for n_shown in (0, 1, between, n_all) if sampling is GREEDY else (1, between):
        answer = worker.stream(_request(sampling))
        steps = [next(answer)]
        while len(_ids(steps)) < n_shown:
            steps.append(next(answer))
        os.kill(worker.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        if n_shown < n_all:
            with pytest.raises(WorkerEnded) as ended:
                steps.extend(answer)
            assert time.monotonic() - killed_s < 2
            assert ended.value.ending.returncode == -9
            assert ended.value.ending.phase in {"prefill", "decode"}
        answer.close()
        seed, worker = worker.seed, start()
        rest = list(worker.stream(_request(sampling), journal=_ids(steps), seed=seed))
        assert ids == _ids(steps) + _ids(rest)
        assert done.text == _text(steps) + _text(rest) == rest[-1].event.text
        assert done.usage.completion_tokens == rest[-1].event.usage.completion_tokens
        assert done.finish_reason == rest[-1].event.finish_reason


@FULL
def test_a_seed_that_was_drawn_can_be_gone_on_with(start):
    """Where nobody gave a seed, the worker names the one it drew."""
    worker = start()
    request = _request(Sampling(), max_tokens=12)
    steps = list(worker.stream(request))
    assert worker.seed == steps[-1].event.seed
    rest = list(start().stream(request, journal=_ids(steps)[:5], seed=worker.seed))
    assert _ids(steps)[5:] == _ids(rest)
    assert steps[-1].event.text == rest[-1].event.text


@FULL
def test_a_stop_string_that_is_held_back_is_shown_once(start, whole):
    """Text that no token completes comes with the end of the answer, in one piece with it."""
    done, ids = whole[GREEDY]
    stop = (done.text[-3:] + "\0",)  # its beginning is held back at the end
    steps = list(start().stream(_request(stop=stop)))
    assert isinstance(steps[-2].event, Token)
    assert steps[-2].ids == ()
    assert done.text == _text(steps)
    rest = list(start().stream(_request(stop=stop), journal=ids))
    assert (done.text[-3:], done.text) == (_text(rest), rest[-1].event.text)


def test_a_snapshot_is_restored_by_the_next_worker(start, whole):
    """What one worker kept, the next finds, and the answer is the same."""
    first = list(start(EXACT).stream(_request()))
    worker = start(EXACT)
    for _ in range(50):
        again = list(worker.stream(_request(max_tokens=1)))
        if again[-1].event.snapshot.code == "hit":
            break
        time.sleep(0.1)
    next_worker = start(EXACT)
    rest = list(next_worker.stream(_request(), journal=_ids(first)[:9]))
    assert rest[-1].event.usage.reused_tokens > 100
    assert whole[GREEDY][0].text == rest[-1].event.text
    assert _ids(first)[9:] == _ids(rest)


@FULL
def test_warm_waits_until_the_disk_has_it(start):
    """A worker warms as a session does, and a cancel before it ends it."""
    assert start(EXACT).warm([SYSTEM]).code == "stored"
    assert start(EXACT).warm([SYSTEM]).code == "hit"


def test_snapshots_are_encrypted_under_a_key_that_the_program_finds(start, monkeypatch, tmp_path):
    """The worker keeps prefixes under a key that it could not have found itself."""
    key = bytes(range(32))
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(key)
    options = SessionOptions(snapshot=Tier.EXACT, snapshot_key=lambda: key)
    assert start(options).warm([SYSTEM]).code == "stored"
    assert start(EXACT).warm([SYSTEM]).code != "hit", "without the key there is nothing to find"
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(file))
    assert start(EXACT).warm([SYSTEM]).code == "hit"


def test_a_key_that_is_none_is_refused_before_anything_is_started(start):
    """What is wrong with a key is said as it is in this process."""
    with pytest.raises(UsageError, match="32 bytes"):
        start(SessionOptions(snapshot=Tier.EXACT, snapshot_key=b"short"))


def test_what_is_wrong_with_the_kernels_is_told(tiny_models, monkeypatch):
    """It shows only when the model is loaded, and is then the same error as in this process."""
    monkeypatch.setenv("EDGELLM_NATIVE_LIB", "/nonexistent.so")
    with pytest.raises(UsageError, match=r"EDGELLM_NATIVE_LIB=/nonexistent.so"):
        Worker.start(tiny_models / "tiny-llama.gguf", SessionOptions())


@FULL
def test_errors_of_opening_are_the_classes_that_they_are_here(start, tmp_path):
    """A file that is not there, or no model, is the same error as in this process."""
    with pytest.raises(ModelNotFound) as there:
        start(path=tmp_path / "none.gguf")
    with pytest.raises(ModelNotFound) as here:
        open_session(tmp_path / "none.gguf", OFF)
    assert (str(here.value), here.value.path) == (str(there.value), there.value.path)


@FULL
def test_errors_of_a_request_leave_the_worker_alive(start):
    """A request that is refused is an error, and the next is answered."""
    worker = start(SessionOptions(snapshot=Tier.OFF, n_ctx=256))
    with pytest.raises(UsageError, match="journal"):
        list(worker.stream(_request(), journal=[10**9]))
    long = Request((Message("user", "word " * 500),))
    with pytest.raises(Exception, match="holds 256"):
        list(worker.stream(long))
    short = Request((Message("user", "Hi"),), max_tokens=3, sampling=GREEDY)
    assert isinstance([*worker.stream(short)][-1].event, Done)


@FULL
def test_a_request_too_long_for_a_message_is_refused(start, monkeypatch):
    """What cannot be sent is an error at once, and the worker is there for the next."""
    worker = start()
    monkeypatch.setattr(frames, "MAX_JSON_BYTES", 2000)
    begun_s = time.monotonic()
    with pytest.raises(UsageError, match="cannot be sent"):
        list(worker.stream(Request((Message("user", "word " * 500),))))
    assert time.monotonic() - begun_s < 1
    short = Request((Message("user", "Hi"),), max_tokens=2, sampling=GREEDY)
    assert len(_ids([*worker.stream(short)])) == 2


@FULL
def test_a_relative_path_means_what_it_means_here(start, smollm2_gguf, monkeypatch):
    """The worker looks for files from where the program is."""
    monkeypatch.chdir(smollm2_gguf.parent)
    worker = start(path=Path(smollm2_gguf.name))
    assert worker.model.path == smollm2_gguf.name


def test_what_holds_of_the_worker_is_known(start):
    """On Linux every measure holds, and the worker says so itself."""
    spawned: list[int] = []
    worker = start(on_spawn=spawned.append)
    assert [worker.pid] == spawned
    if os.uname().sysname == "Linux":
        assert MEASURES == worker.enforced
    assert worker.facts().load_ms == worker.load_ms > 0
    assert worker.facts().n_ctx == 4096


def test_g16_cancel_ends_an_answer_and_frees_the_slot(start, whole):
    """User cancel frees the slot within 300 ms, and what was shown stays a beginning of the answer."""
    worker = start()
    random = Random(5)
    waits_s = []
    for _ in range(5):
        answer = worker.stream(_request(max_tokens=200))
        steps = [next(answer) for _ in range(random.randrange(3, 25))]
        begun_s = time.monotonic()
        worker.cancel()
        rest = list(answer)
        waits_s.append(time.monotonic() - begun_s)
        assert rest[-1].event.finish_reason == "cancelled"
        assert _text(steps) == rest[-1].event.text, "nothing comes after a cancel"
        assert whole[GREEDY][0].text.startswith(_text(steps)[:40])
        assert len(_ids(steps)) == rest[-1].event.usage.completion_tokens
    assert sorted(waits_s)[len(waits_s) // 2] < 0.3


@FULL
def test_a_cancel_before_the_first_step_counts(start):
    """An answer that is cancelled before it is asked for ends at once; the next one does not."""
    worker = start()
    answer = worker.stream(_request())
    worker.cancel()
    steps = list(answer)
    assert ("", "cancelled") == (steps[-1].event.text, steps[-1].event.finish_reason)
    assert [*worker.stream(_request(max_tokens=2))][-1].event.finish_reason == "length"


@FULL
def test_closing_the_iterator_stops_the_answer(start):
    """Who stops reading can ask again at once."""
    worker = start()
    answer = worker.stream(_request(max_tokens=None))
    next(answer)
    answer.close()
    assert len(_ids([*worker.stream(_request(max_tokens=2))])) == 2


@FULL
def test_one_answer_at_a_time(start):
    """A second request meanwhile is refused in words, and harms neither."""
    worker = start()
    answer = worker.stream(_request(max_tokens=4))
    next(answer)
    with pytest.raises(UsageError, match="another answer"):
        next(worker.stream(_request()))
    assert len(_ids(list(answer))) == 4


def test_f_pk_06_a_worker_is_used_by_many_threads(start, whole):
    """Threads that stream, cancel, warm and close get answers, "busy", or the end, and nothing else."""
    worker = start()
    unexpected: list[BaseException] = []
    texts: list[str] = []

    def use(n: int) -> None:
        for _ in range(3):
            try:
                if n % 3 == 0:
                    worker.cancel()
                steps = list(worker.stream(_request(max_tokens=5)))
                texts.append(steps[-1].event.text)
            except (UsageError, EngineFailed, Cancelled, WorkerEnded):  # noqa: PERF203  # a few times
                time.sleep(0.02)
            except BaseException as err:  # noqa: BLE001  # told below
                unexpected.append(err)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    threads[0].join(1)
    worker.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert unexpected == []
    assert all(whole[GREEDY][0].text.startswith(text) for text in texts)


@pytest.mark.parametrize(
    ("fault", "returncode", "phase", "told"),
    [
        pytest.param("load:segv", -11, "load", "Segmentation fault", marks=FULL),
        pytest.param("context:abort", -6, "context", "Aborted", marks=FULL),
        pytest.param("prefill:oom", -6, "prefill", "std::bad_alloc", marks=FULL),
        pytest.param("decode:3:abort", -6, "decode", "Aborted", marks=FULL),
        pytest.param("decode:3:exit", 0, "decode", "", marks=FULL),
        ("snapshot:kill", -9, "snapshot", ""),
    ],
)
@LINUX
def test_a_death_is_told_with_its_phase(start, monkeypatch, fault, returncode, phase, told):
    """However the worker dies, the ending has the code, the phase and what was written."""
    monkeypatch.setenv(FAULT_VARIABLE, fault)
    with pytest.raises(WorkerEnded) as ended:
        list(start(EXACT).stream(_request()))
    ending = ended.value.ending
    assert (returncode, phase) == (ending.returncode, ending.phase)
    assert told in ending.stderr_tail
    assert "rivers" not in ending.stderr_tail


def test_a_memory_error_is_the_last_word(start, monkeypatch):
    """A `MemoryError` that the worker cannot go on after is in the ending."""
    monkeypatch.setenv(FAULT_VARIABLE, "decode:2:memory")
    with pytest.raises(WorkerEnded) as ended:
        list(start().stream(_request()))
    assert ended.value.ending.exception == "MemoryError: a fault on purpose"


@pytest.mark.parametrize("kind", [pytest.param("garbage", marks=FULL), "half"])
def test_damaged_frames_of_a_real_worker_end_it(start, monkeypatch, kind):
    """A worker that goes mad in the middle of an answer is an ending, not an error of its text."""
    monkeypatch.setenv(FAULT_VARIABLE, f"decode:2:{kind}")
    with pytest.raises(WorkerEnded) as ended:
        list(start().stream(_request()))
    assert ended.value.ending.damage


@FULL
def test_a_worker_that_hangs_is_killed_by_a_cancel(start, monkeypatch):
    """A cancel that nobody hears ends the process after two seconds."""
    monkeypatch.setenv(FAULT_VARIABLE, "decode:1:hang")
    worker = start()
    answer = worker.stream(_request())
    while not next(answer).ids:
        pass
    time.sleep(0.1)  # until the token is about to be decoded
    threading.Timer(0.1, worker.cancel).start()
    begun_s = time.monotonic()
    with pytest.raises(WorkerEnded) as ended:
        list(answer)
    assert CANCEL_S <= time.monotonic() - begun_s < CANCEL_S + 1
    assert ended.value.ending.asked == "cancel"
    worker.close()


@FULL
def test_a_worker_that_hangs_is_killed_by_close(start, monkeypatch):
    """Closing takes no longer than it may, whatever the worker does."""
    monkeypatch.setenv(FAULT_VARIABLE, "decode:1:hang")
    worker = start()
    answer = worker.stream(_request())
    while not next(answer).ids:
        pass
    time.sleep(0.1)  # until the token is about to be decoded
    begun_s = time.monotonic()
    worker.close()
    assert CLOSE_S <= time.monotonic() - begun_s < CLOSE_S + 1
    with pytest.raises(WorkerEnded) as ended:
        list(answer)
    assert ended.value.ending.asked == "close"
    worker.close()


@FULL
def test_kill_ends_it_from_another_thread(start):
    """Who waits for a worker that is killed hears of it."""
    worker = start()
    threading.Timer(0.3, worker.kill).start()
    with pytest.raises(WorkerEnded) as ended:
        list(worker.stream(_request(max_tokens=None)))
    assert ended.value.ending.asked == "kill"
    with pytest.raises(WorkerEnded):
        list(worker.stream(_request()))


@FULL
def test_close_ends_in_order(start):
    """A worker that is closed ends with code 0, twice is fine, and asking it then is refused."""
    worker = start()
    list(worker.stream(_request(max_tokens=2)))
    worker.close()
    worker.close()
    assert worker.ending.was_closed
    assert worker.ending.returncode == 0
    with pytest.raises(EngineFailed, match="closed"):
        list(worker.stream(_request()))
