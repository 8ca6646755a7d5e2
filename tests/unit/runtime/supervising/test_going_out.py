"""Answers that an endpoint takes over: when it may, how the text is joined, and what is written down."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

from edgellm.core import Done, Failure, Message, Mode, Request, Switch, Warn
from edgellm.errors import EdgeLLMError, EndpointError, NoRoute, OutOfMemory, WorkerDied
from edgellm.routing import Budget
from edgellm.runtime.books.ledger import Ledger

WHOLE = "The answer comes in ten little words , so it is . "
FAR = "From far away."


@pytest.fixture
def far(endpoint_server, kit) -> Any:
    """An endpoint that answers `FAR`, or goes on with what it is sent."""

    def handle(line: Any) -> None:
        messages = line.asked.json()["messages"]
        text = " Gone on with." if messages[-1]["role"] == "assistant" else FAR
        line.stream(kit.chunk(text), kit.chunk(finish="stop"), kit.USAGE)

    with endpoint_server.serving(handle) as server:
        yield server


def dies(kit: Any, n: int = 3) -> list[Any]:
    """Lives of two workers whose memory runs out."""
    return [kit.Life(n, kit.oom()), kit.Life(n + 1, kit.oom())]


def test_nothing_shown_goes_out_with_one_switch(stage, kit, far) -> None:
    """Before the first token nothing is taken back; the change of route is announced once."""
    lives = [kit.Life(0, kit.oom()), kit.Life(0, kit.oom())]
    supervisor, _ = stage.open(*lives, **stage.cloud(far.url))
    seen = kit.see(supervisor)
    assert seen.text == seen.done.text == FAR
    switches = seen.of(Switch)
    assert [(s.source, s.target, s.discard_from_seq) for s in switches] == [
        ("local", "cloud", None)
    ]
    assert seen.done.route == "cloud"
    assert {event.route for event in seen.events if hasattr(event, "seq")} == {"cloud"}
    (record,) = stage.records()
    assert (record.route, record.trigger, record.finish) == ("cloud", "worker_died", "stop")
    assert record.consent_id
    assert record.cloud is not None
    assert (record.cloud.prompt_tokens, record.cloud.completion_tokens) == (7, 3)
    assert record.cloud.bytes_out == len(far.asked[0].body)
    assert seen.done.cloud == record.cloud
    assert far.asked[0].headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize("continues", ["flags", "trailing"])
def test_a_shown_text_is_gone_on_with(stage, kit, far, continues: str) -> None:
    """Where the endpoint can: the text so far is sent as its beginning, and nothing comes twice."""
    supervisor, _ = stage.open(*dies(kit), **stage.cloud(far.url, continues=continues))
    seen = kit.see(supervisor)
    assert seen.text == seen.done.text == "The answer comes in Gone on with."
    assert [s.target for s in seen.of(Switch)] == ["local", "cloud"]
    assert seen.of(Switch)[-1].discard_from_seq is None
    assert seen.done.degraded
    assert len(far.asked) == 1
    assert far.asked[0].json()["messages"][-1]["content"].strip() == "The answer comes in"


def test_a_shown_text_is_taken_back_where_the_caller_says_so(stage, kit, far) -> None:
    """`restart`: the event discards all of it, and the answer is whole from its beginning."""
    options = stage.cloud(far.url) | {"on_failure": "restart"}
    supervisor, _ = stage.open(*dies(kit), **options)
    seen = kit.see(supervisor)
    assert seen.text == seen.done.text == FAR
    assert [s.discard_from_seq for s in seen.of(Switch)] == [0, 0]


def test_otherwise_the_error_stands_with_what_was_in_the_way(stage, kit, far) -> None:
    """By default a text that cannot be gone on with ends with the first error; nothing is sent."""
    supervisor, _ = stage.open(*dies(kit), **stage.cloud(far.url))
    seen = kit.see(supervisor)
    assert isinstance(seen.last, Failure)
    assert (seen.last.code, seen.last.exit) == ("out_of_memory", 4)
    assert "cannot go on with a text begun elsewhere" in seen.of(Warn)[-1].message
    assert not far.asked


@pytest.mark.parametrize("case", ["private", "no consent", "no budget", "tainted", "offline"])
def test_g4_nothing_is_sent_where_a_rule_forbids_it(stage, kit, far, case: str) -> None:
    """Not in a closed mode, without consent or budget, or with a private message."""
    options = stage.cloud(far.url)
    request = kit.ASKED
    if case == "no consent":
        kit.ConsentBook(stage.home).revoke()
    elif case == "no budget":
        options = stage.cloud(far.url, budget=Budget(tokens_per_day=10))
    elif case == "tainted":
        request = Request((Message("user", "Why?", sensitivity="private"),))
    else:
        options["mode"] = Mode.PRIVATE if case == "private" else Mode.OFFLINE
    supervisor, _ = stage.open(kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **options)
    with pytest.raises(OutOfMemory):
        supervisor.generate(request)
    assert not far.n_connections
    assert stage.records()[0].cloud is None


@pytest.mark.parametrize("mode", [Mode.PREFER_LOCAL, Mode.PREFER_CLOUD])
def test_nothing_is_sent_where_no_record_can_be_kept(stage, kit, far, mode: Mode) -> None:
    """A consent that can be read is not enough: what leaves is written down, or does not leave."""
    options = stage.cloud(far.url) | {"mode": mode}
    (stage.home / "records" / "audit.lock").mkdir()
    supervisor, _ = stage.open(kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **options)
    with pytest.raises(OutOfMemory):
        supervisor.generate(kit.ASKED)
    assert not far.n_connections


@pytest.mark.parametrize("mode", [Mode.PREFER_LOCAL, Mode.PREFER_CLOUD])
def test_a_key_that_cannot_be_sent_closes_that_route_alone(stage, kit, far, mode: Mode) -> None:
    """This machine answers, and the user is told once what is wrong with the key."""
    options = stage.cloud(far.url) | {"mode": mode}
    options["cloud"] = dataclasses.replace(options["cloud"], api_key="sk-1 sk-2")
    supervisor, _ = stage.open(kit.Life(0, kit.oom()), kit.Life(), **options)
    seen = kit.see(supervisor)
    assert (seen.text, seen.done.route) == (WHOLE, "local")
    assert not far.n_connections
    said = [warn.message for warn in seen.of(Warn) if "no header can carry" in warn.message]
    assert len(said) == 1
    assert "sk-1" not in repr(seen)


def test_what_left_is_in_the_record_though_it_could_not_be_booked(
    stage, kit, far, monkeypatch
) -> None:
    """A ledger that fails in the middle: what was put aside stays, and the log says what was sent."""

    def fails(*_: object) -> int:
        raise EdgeLLMError("another process has held the ledger")

    monkeypatch.setattr(Ledger, "settle", fails)
    options = stage.cloud(far.url) | {"mode": Mode.PREFER_CLOUD}
    seen = kit.see(stage.open(**options)[0])
    assert seen.text == FAR
    (record,) = stage.records()
    assert record.cloud is not None
    assert record.cloud.bytes_out == len(far.asked[0].body)
    assert Ledger(stage.home).today().n_bytes >= record.cloud.bytes_out


def test_preferring_a_route_that_is_not_there_is_said_once(stage, kit) -> None:
    """The answer is local, and the user knows."""
    supervisor, _ = stage.open(mode=Mode.PREFER_LOCAL)
    said = [event.message for _ in range(2) for event in kit.see(supervisor).of(Warn)]
    assert said == ["mode prefer-local: no endpoint is set up, answers stay local"]


def test_a_killed_worker_sends_nothing_out(stage, kit, far) -> None:
    """Somebody's kill, twice, is no evidence of anything: an error, and nothing leaves."""
    supervisor, _ = stage.open(
        kit.Life(0, kit.died()), kit.Life(0, kit.died()), **stage.cloud(far.url)
    )
    with pytest.raises(WorkerDied):
        supervisor.generate(kit.ASKED)
    assert not far.n_connections


def test_both_routes_fail(stage, kit, endpoint_server) -> None:
    """The first error is raised with the second chained."""
    with endpoint_server.serving(lambda line: line.reply(401, '{"error": "no"}')) as server:
        supervisor, _ = stage.open(
            kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **stage.cloud(server.url)
        )
        with pytest.raises(OutOfMemory) as caught:
            supervisor.generate(kit.ASKED)
        assert isinstance(caught.value.__cause__, EndpointError)
        assert caught.value.__cause__.kind == "auth"
        assert server.n_connections == 1
        with pytest.raises(NoRoute):  # memory rests, and the key is known to be refused
            supervisor.generate(kit.ASKED)
        assert server.n_connections == 1


def test_what_the_endpoint_said_is_told_where_the_first_error_stands(
    stage, kit, endpoint_server
) -> None:
    """The error is that of this machine; why the endpoint was of no help is not kept back."""
    with endpoint_server.serving(lambda line: line.send(b"HTTP/1.1 418 Teapot\r\n\r\n")) as server:
        life = kit.Life(0, kit.oom())
        seen = kit.see(stage.open(life, life, **stage.cloud(server.url))[0])
    assert seen.of(Failure)[0].code == OutOfMemory.code
    assert any("418" in warning.message for warning in seen.of(Warn))


def test_a_model_that_could_not_be_loaded_was_to_be_used_here(stage, kit, far) -> None:
    """The switch of the first answer is from this machine, though no answer was begun on it."""
    supervisor, _ = stage.open(
        kit.Life(start=kit.oom("load")), kit.Life(start=kit.oom("load")), **stage.cloud(far.url)
    )
    (switch,) = kit.see(supervisor).of(Switch)
    assert (switch.source, switch.target) == ("local", "cloud")


def test_tokens_made_here_are_counted_where_the_endpoint_finishes(stage, kit, far) -> None:
    """`usage` is of this machine, whoever makes the rest."""
    options = stage.cloud(far.url, continues="trailing")
    supervisor, _ = stage.open(*dies(kit), **options)
    done = kit.see(supervisor).done
    assert done.route == "cloud"
    assert done.usage.completion_tokens == 4
    assert stage.records()[0].completion_tokens == 4


def test_a_private_message_is_the_one_reason(stage, kit, far) -> None:
    """Nothing is looked up of an endpoint then, and nothing said of a consent that was given."""
    supervisor, _ = stage.open(*dies(kit), **stage.cloud(far.url))
    asked = Request((Message("user", "Why?", sensitivity="private"),))
    said = [warning.message for warning in kit.see(supervisor, asked).of(Warn)]
    assert any("a message is private" in words for words in said)
    assert not any("consent" in words for words in said)


def test_an_endpoint_that_is_busy_is_asked_again(stage, kit, endpoint_server) -> None:
    """As it says when: one answer, nothing doubled, each request booked."""
    replies = [("0.2", 429), ("0.1", 503)]
    times: list[float] = []

    def handle(line: Any) -> None:
        times.append(time.monotonic())
        if replies:
            wait, status = replies.pop(0)
            line.reply(status, "{}", {"Retry-After-Ms": str(int(float(wait) * 1000))})
        else:
            line.stream(kit.chunk(FAR), kit.chunk(finish="stop"), kit.USAGE)

    with endpoint_server.serving(handle) as server:
        supervisor, _ = stage.open(
            kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **stage.cloud(server.url)
        )
        seen = kit.see(supervisor)
    assert seen.text == FAR
    assert times[1] - times[0] >= 0.2
    assert len(stage.records()) == 1
    assert stage.records()[0].cloud.bytes_out == sum(len(a.body) for a in server.asked)


def test_f_cf_04_text_that_was_shown_is_never_asked_for_again(stage, kit, endpoint_server) -> None:
    """A stream that is cut after text ends with an error; it is not sent a second time."""

    def handle(line: Any) -> None:
        line.send(endpoint_server.OK)
        line.chunk(endpoint_server.sse(kit.chunk("Half an ")))
        line.reset()

    with endpoint_server.serving(handle) as server:
        supervisor, _ = stage.open(
            kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **stage.cloud(server.url)
        )
        seen = kit.see(supervisor)
        assert isinstance(seen.last, Failure)
        assert seen.text == "Half an "
        assert server.n_connections == 1


def test_prefer_cloud_asks_there_first_and_falls_back_here(stage, kit, endpoint_server) -> None:
    """The endpoint is the first choice; when it fails this machine answers, announced."""
    with endpoint_server.serving(lambda line: line.reply(500, "{}")) as server:
        options = stage.cloud(server.url) | {"mode": Mode.PREFER_CLOUD}
        supervisor, workers = stage.open(**options)
        assert not workers.options  # nothing is loaded that may not be needed
        seen = kit.see(supervisor)
    assert seen.text == WHOLE
    assert [(s.source, s.target) for s in seen.of(Switch)] == [("cloud", "local")]
    assert stage.records()[0].route == "local"
    assert stage.records()[0].trigger == "cloud_failed"


def test_a_model_that_cannot_be_loaded_leaves_the_endpoint(stage, kit, far, tmp_path) -> None:
    """Memory ran out twice while loading, or there is no such file: the session opens all the same."""
    supervisor, _ = stage.open(kit.Life(start=kit.oom("load")), **stage.cloud(far.url))
    seen = kit.see(supervisor)
    assert (seen.text, len(seen.of(Switch))) == (FAR, 1)
    supervisor, workers = stage.open(path=tmp_path / "none.gguf", **stage.cloud(far.url))
    assert kit.see(supervisor).text == FAR
    assert not workers.options


def test_d1_a_late_first_token_goes_out(stage, kit, far, monkeypatch) -> None:
    """After the caller's deadline the endpoint is asked; without one it waits."""
    from edgellm.runtime.supervising import watching

    monkeypatch.setattr(watching, "LOOK_S", 0.02)
    options = stage.cloud(far.url) | {"deadline_s": 0.2}
    supervisor, _ = stage.open(kit.Life(delay=threading.Event()), **options)
    seen = kit.see(supervisor)
    assert seen.text == FAR
    assert stage.records()[0].trigger == "deadline"
    kit.ConsentBook(stage.home).revoke()  # nowhere to go: it waits here
    events = supervisor.stream(kit.ASKED)
    threading.Timer(0.5, supervisor.cancel).start()
    assert kit.Seen(list(events)).done.finish_reason == "cancelled"


def test_g16_a_cancel_at_the_endpoint(stage, kit, endpoint_server) -> None:
    """It ends the answer there too, keeps its text, and falls back to nothing."""

    def handle(line: Any) -> None:
        line.send(endpoint_server.OK)
        line.chunk(endpoint_server.sse(kit.chunk("Once ")))
        line.gone_s()

    with endpoint_server.serving(handle) as server:
        options = stage.cloud(server.url) | {"mode": Mode.PREFER_CLOUD}
        supervisor, workers = stage.open(**options)
        events = supervisor.stream(kit.ASKED)
        first = next(events)
        began_s = time.monotonic()
        supervisor.cancel()
        seen = kit.Seen([first, *events])
    assert time.monotonic() - began_s < 1
    assert (seen.done.finish_reason, seen.done.text) == ("cancelled", "Once ")
    assert not workers.options
    assert stage.records()[0].finish == "cancelled"


def test_an_endpoint_that_is_not_there_was_sent_nothing(stage, kit) -> None:
    """No connection, no byte: the record says so, nothing is taken, and no request is left open."""
    options = stage.cloud("http://127.0.0.1:9") | {"mode": Mode.PREFER_CLOUD}
    seen = kit.see(stage.open(**options)[0])
    assert (seen.text, seen.done.cloud) == (WHOLE, None)
    (record,) = stage.records()
    assert (record.route, record.cloud, record.reservation_id) == ("local", None, "")
    assert not Ledger(stage.home).totals()


def test_what_was_put_aside_is_settled(stage, kit, far) -> None:
    """The ledger holds what the endpoint counted, not the worst case; a free server costs nothing."""
    from edgellm.runtime.books.ledger import Ledger

    supervisor, _ = stage.open(
        *[kit.Life(0, kit.oom())] * 2,
        **stage.cloud(far.url, usd_per_mtok_in=1.0, usd_per_mtok_out=2.0),
    )
    seen = kit.see(supervisor)
    assert isinstance(seen.last, Done)
    (taken,) = Ledger(stage.home).totals()
    assert (taken.amount.tokens, taken.n_open) == (10, 0)
    assert taken.amount.micro_usd == 13
    assert seen.done.cloud.usd == pytest.approx(13e-6)
    assert stage.records()[0].micro_usd == 13


def test_stop_strings_are_cut_here_too(stage, kit, endpoint_server) -> None:
    """An endpoint that ignores them does not change the answer; it is hung up on."""

    def handle(line: Any) -> None:
        line.send(endpoint_server.OK)
        for text in ("One. ", "Tw", "o. Thr", "ee."):
            line.chunk(endpoint_server.sse(kit.chunk(text)))
        line.gone_s()

    with endpoint_server.serving(handle) as server:
        options = stage.cloud(server.url) | {"mode": Mode.PREFER_CLOUD}
        supervisor, _ = stage.open(**options)
        seen = kit.see(supervisor, Request((Message("user", "Count."),), stop=("Two",)))
    assert (seen.text, seen.done.finish_reason) == ("One. ", "stop")


def streams(kit: Any, server: Any, chunks: list[Any]) -> Any:
    """What an endpoint does that sends some chunks, and then waits to be hung up on."""

    def handle(line: Any) -> None:
        line.send(server.OK)
        for one in chunks:
            line.chunk(server.sse(one))
        line.gone_s()

    return handle


def priced(stage: Any, url: str, usd_per_request: float | None = None) -> dict[str, Any]:
    """Options with an endpoint whose answers cost a cent a token, and its prompts nothing."""
    budget = Budget(usd_per_request=usd_per_request)
    prices = {"usd_per_mtok_in": 0.0, "usd_per_mtok_out": 1e4, "idle_s": 0.5}
    return stage.cloud(url, budget=budget, **prices) | {"mode": Mode.PREFER_CLOUD}


def test_an_answer_that_comes_letter_by_letter_is_whole(stage, kit, endpoint_server) -> None:
    """A piece need not be a token: the endpoint keeps to its limit, and says itself when it ends."""
    text = "It is forty-two."

    def handle(line: Any) -> None:
        line.stream(*(kit.chunk(letter) for letter in text), kit.chunk(finish="length"))

    with endpoint_server.serving(handle) as server:
        asked = dataclasses.replace(kit.ASKED, max_tokens=3)
        seen = kit.see(stage.open(**priced(stage, server.url))[0], asked)
    assert (seen.text, seen.done.finish_reason) == (text, "length")
    assert not seen.of(Warn)
    assert stage.records()[0].cloud.estimated
    # Without a count by the endpoint each piece may have been one, and is booked.
    assert Ledger(stage.home).today().micro_usd >= len(text) * 10_000 > 30_000


def test_an_endpoint_that_knows_no_limit_is_left(stage, kit, endpoint_server) -> None:
    """Where the text is surely longer than what was asked for; what it may cost is booked."""
    with endpoint_server.serving(streams(kit, endpoint_server, [kit.chunk("word ")] * 6)) as server:
        asked = dataclasses.replace(kit.ASKED, max_tokens=3)
        seen = kit.see(stage.open(**priced(stage, server.url))[0], asked)
    assert seen.text == seen.done.text == "word " * 5
    assert seen.done.finish_reason == "length"
    assert "went past the 3 tokens" in seen.of(Warn)[-1].message
    (record,) = stage.records()
    assert record.cloud.estimated
    assert record.micro_usd == Ledger(stage.home).today().micro_usd >= 60_000


def test_what_the_budget_does_not_cover_is_cut(stage, kit, endpoint_server) -> None:
    """Where a longer answer than was paid for can be no longer paid for, it ends there, and is said."""
    with endpoint_server.serving(streams(kit, endpoint_server, [kit.chunk("word ")] * 6)) as server:
        asked = dataclasses.replace(kit.ASKED, max_tokens=3)
        seen = kit.see(stage.open(**priced(stage, server.url, 0.035))[0], asked)
    assert seen.text == seen.done.text == "word " * 4  # the piece that told us was received
    assert seen.done.finish_reason == "length"
    assert "than the budget pays for" in seen.of(Warn)[-1].message
    assert Ledger(stage.home).today().micro_usd == 50_000  # 20 letters may be five


def test_an_endpoint_that_counts_is_believed(stage, kit, endpoint_server) -> None:
    """Letters are no tokens where it says so, and the first one beyond the limit ends the answer."""

    def counted(n: int) -> Any:
        return kit.chunk("ab") | {"usage": {"prompt_tokens": 7, "completion_tokens": n}}

    chunks = [counted(1), counted(1), counted(2), counted(2), counted(3), counted(4)]
    with endpoint_server.serving(streams(kit, endpoint_server, chunks)) as server:
        asked = dataclasses.replace(kit.ASKED, max_tokens=3)
        seen = kit.see(stage.open(**priced(stage, server.url, 0.035))[0], asked)
    assert seen.text == "ab" * 5
    assert "went past the 3 tokens" in seen.of(Warn)[-1].message
    assert Ledger(stage.home).today().micro_usd == 40_000


def test_the_limit_of_an_answer_is_that_of_all_its_requests(stage, kit, endpoint_server) -> None:
    """What a failed request may have cost counts against the next one for the same answer."""
    with endpoint_server.serving(lambda line: line.reply(500, "{}")) as server:
        asked = dataclasses.replace(kit.ASKED, max_tokens=3)
        supervisor, _ = stage.open(**priced(stage, server.url, 0.065))
        kit.see(supervisor, asked)
        assert len(server.asked) == 2  # a third one would come to nine cents
    assert Ledger(stage.home).today().micro_usd == 60_000


def test_large_pieces_are_many_tokens(stage, kit, endpoint_server) -> None:
    """Whoever sends much text at once does not get past the limit by that."""

    def handle(line: Any) -> None:
        line.send(endpoint_server.OK)
        for _ in range(2):
            line.chunk(endpoint_server.sse(kit.chunk("many words " * 10)))
        line.gone_s()

    with endpoint_server.serving(handle) as server:
        options = stage.cloud(server.url) | {"mode": Mode.PREFER_CLOUD}
        seen = kit.see(stage.open(**options)[0], dataclasses.replace(kit.ASKED, max_tokens=10))
    assert (seen.text, seen.done.finish_reason) == ("many words " * 10, "length")
