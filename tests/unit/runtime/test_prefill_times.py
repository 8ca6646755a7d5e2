"""What is measured as the speed of disk and model: nothing else that takes time beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from edgellm.core import Tier
from edgellm.runtime.live import Prompt
from edgellm.runtime.prefill import Prefiller
from edgellm.runtime.storing import Storing

SLOW_S = 0.1
TOKENS = tuple(97 + n % 26 for n in range(180))


def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call take its time: a transfer before it, a wait for others, a copy."""

    def slow(*given: Any, **how: Any) -> Any:
        time.sleep(SLOW_S)
        return call(*given, **how)

    return slow


def test_transfers_waits_and_copies_are_no_speed_of_the_machine(
    engine_types, store, monkeypatch
) -> None:
    """The disk's time is that of reading and writing files, the model's that of decode calls."""
    engine = engine_types["recording"]("yes")
    engine.reserve(1000)
    monkeypatch.setattr(type(store), "longest", slowly(type(store).longest))
    monkeypatch.setattr(type(store), "save", slowly(type(store).save))
    monkeypatch.setattr(engine, "capture", slowly(engine.capture))
    prompt = Prompt(bytes(TOKENS).decode(), TOKENS, (150,))
    storing = Storing(store, tier=Tier.EXACT)
    cold = Prefiller(engine, storing).run(prompt, None)
    assert storing.writer.submit(cold.unsaved, done=cold.release)
    assert storing.writer.close(30)
    (saved,) = storing.writer.outcomes
    assert 0 < saved.save_s < SLOW_S
    assert saved.n_bytes / saved.save_s == storing.speeds.save_bytes_per_s
    assert 0 < cold.decode_s < SLOW_S <= cold.prefill_s
    storing = Storing(store, tier=Tier.EXACT)
    warm = Prefiller(engine, storing).run(prompt, None)
    assert "hit" == warm.snapshot.code
    assert 0 < warm.disk_s < SLOW_S <= warm.restore_s
    assert warm.restored_bytes / warm.disk_s == storing.speeds.restore_bytes_per_s
