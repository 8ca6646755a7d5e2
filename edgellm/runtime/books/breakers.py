"""The breakers on disk, so that a program that starts again and again does not fail again and again.

A local breaker is of one model, backend and size of context; a cloud breaker of one origin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from edgellm.errors import RecordsDamaged, UsageError
from edgellm.policy import breaker
from edgellm.policy.breaker import CloudHealth, LocalHealth
from edgellm.runtime.books.folder import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgellm.errors import EndpointFailure
    from edgellm.policy.route import BreakerState

BOOK: Final = "breakers"
FILE_NAME: Final = "breakers.json"
_VERSION: Final = 1
_MAX_KEPT: Final = 256
_RESET: Final = "`edgellm breaker reset`"

Health = TypeVar("Health", LocalHealth, CloudHealth)


@dataclass(frozen=True, slots=True)
class Breakers:
    """All breakers that are not as new.

    Attributes:
        local: by `local_key`.
        cloud: by origin.
    """

    local: Mapping[str, LocalHealth]
    cloud: Mapping[str, CloudHealth]


def local_key(model: str, backend: str, n_ctx: int) -> str:
    """Return the name of a local breaker; contexts up to the same power of two share one.

    Args:
        model: content id of the model file.
        backend: what computes, such as `cpu` or `cuda`.
        n_ctx: tokens of the context.
    """
    return f"{model}/{backend}/{1 << max(0, n_ctx - 1).bit_length()}"


class BreakerBook:
    """The breakers below one `EDGELLM_HOME`. All methods raise `RecordsDamaged` for a bad file.

    Args:
        home: the folder.
        clock: seconds since 1970.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._records = Records(home)
        self._clock = clock

    def show(self) -> Breakers:
        """Return all breakers.

        Raises:
            RecordsDamaged: the file is not what was written.
        """
        value = self._records.read_json(FILE_NAME)
        if value is None:
            return Breakers({}, {})
        path = self._records.path / FILE_NAME
        if value.get("version") != _VERSION:
            raise RecordsDamaged("is no file of breakers", path=path, hint=_RESET)
        try:
            return Breakers(_read(LocalHealth, value["local"]), _read(CloudHealth, value["cloud"]))
        except (UsageError, KeyError) as err:
            raise RecordsDamaged(f"has a wrong entry: {err}", path=path, hint=_RESET) from err

    def local_state(self, key: str) -> BreakerState:
        """Return the state of a local breaker."""
        return breaker.local_state(self.show().local.get(key, LocalHealth()))

    def local_rest_s(self, key: str) -> float:
        """Return the seconds that a model still rests."""
        return breaker.local_rest_s(self.show().local.get(key, LocalHealth()), self._clock())

    def note_death(self, key: str) -> BreakerState:
        """Note that memory ran out, and return the state."""
        return self._step_local(key, breaker.after_death)

    def note_look(self, key: str, *, fits: bool) -> BreakerState:
        """Note whether free memory was enough with a margin, and return the state."""
        if key not in self.show().local:
            return "closed"
        return self._step_local(key, lambda health, at: breaker.after_look(health, at, fits=fits))

    def note_warm_up(self, key: str) -> BreakerState:
        """Note that a decode went well, and return the state."""
        if key not in self.show().local:
            return "closed"
        return self._step_local(key, lambda health, _: breaker.after_warm_up(health))

    def cloud_state(self, origin: str, settings: str) -> BreakerState:
        """Return the state of a cloud breaker; `settings` is a fingerprint of address and key."""
        health = self.show().cloud.get(origin, CloudHealth())
        return breaker.cloud_state(health, self._clock(), settings)

    def cloud_rest_s(self, origin: str) -> float:
        """Return the seconds that an endpoint is still left alone."""
        return breaker.cloud_rest_s(self.show().cloud.get(origin, CloudHealth()), self._clock())

    def begin_trial(self, origin: str, settings: str) -> bool:
        """Claim the careful try of a half open breaker; False where somebody else has it."""
        with self._records.locked(BOOK):
            known = self.show()
            health, now_s = known.cloud.get(origin, CloudHealth()), self._clock()
            state = breaker.cloud_state(health, now_s, settings)
            if state == "half_open":
                self._write(known.local, {**known.cloud, origin: breaker.at_trial(health, now_s)})
        return state != "open"

    def give_back_trial(self, origin: str) -> None:
        """Let others make the careful try that was claimed here, and found out nothing."""
        if origin in self.show().cloud:
            self._step_cloud(origin, lambda health, _: breaker.after_no_trial(health))

    def note_answer(self, origin: str) -> None:
        """Note a whole answer of an endpoint."""
        self._step_cloud(origin, lambda health, _: breaker.after_answer(health))

    def note_failure(
        self,
        origin: str,
        kind: EndpointFailure,
        *,
        settings: str,
        retry_after_s: float | None = None,
    ) -> None:
        """Note a failure of an endpoint; arguments as of `policy.breaker.after_failure`."""
        self._step_cloud(
            origin,
            lambda health, at: breaker.after_failure(
                health, at, kind, settings=settings, retry_after_s=retry_after_s
            ),
        )

    def reset(self, name: str | None = None) -> int:
        """Close one breaker or all, and return how many there were; a damaged file goes whole."""
        with self._records.locked(BOOK):
            try:
                known = self.show()
            except RecordsDamaged:
                if name is not None:
                    raise
                known = Breakers({}, {})
            local = {key: one for key, one in known.local.items() if name not in (None, key)}
            cloud = {key: one for key, one in known.cloud.items() if name not in (None, key)}
            self._write(local, cloud)
        return len(known.local) + len(known.cloud) - len(local) - len(cloud)

    def _step_local(
        self, key: str, step: Callable[[LocalHealth, float], LocalHealth]
    ) -> BreakerState:
        with self._records.locked(BOOK):
            known = self.show()
            health = step(known.local.get(key, LocalHealth()), self._clock())
            self._write({**_without(known.local, key), key: health}, known.cloud)
        return breaker.local_state(health)

    def _step_cloud(self, origin: str, step: Callable[[CloudHealth, float], CloudHealth]) -> None:
        with self._records.locked(BOOK):
            known = self.show()
            health = step(known.cloud.get(origin, CloudHealth()), self._clock())
            self._write(known.local, {**_without(known.cloud, origin), origin: health})

    def _write(self, local: Mapping[str, LocalHealth], cloud: Mapping[str, CloudHealth]) -> None:
        """Write the newest breakers, without those that are as new."""
        kept_local = {key: one for key, one in local.items() if one != LocalHealth()}
        kept_cloud = {key: one for key, one in cloud.items() if one != CloudHealth()}
        value = {
            "version": _VERSION,
            "local": [[key, one.to_wire()] for key, one in kept_local.items()][-_MAX_KEPT:],
            "cloud": [[key, one.to_wire()] for key, one in kept_cloud.items()][-_MAX_KEPT:],
        }
        self._records.write_json(FILE_NAME, value)


def _without(known: Mapping[str, Health], key: str) -> dict[str, Health]:
    """Leave one out, so that it comes last, as the newest, when it is put in again."""
    return {name: one for name, one in known.items() if name != key}


def _read(kind: type[Health], entries: Any) -> dict[str, Health]:
    """Return the entries of a file.

    Raises:
        UsageError: one is wrong.
    """
    if not isinstance(entries, list):
        raise UsageError("a list is missing")
    found: dict[str, Health] = {}
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise UsageError("an entry is no name with a state")
        found[entry[0]] = kind.from_wire(entry[1])
    return found
