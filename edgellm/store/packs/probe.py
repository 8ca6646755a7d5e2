"""A probe: what an engine said after a prefix and one more token, to be said again elsewhere.

It tells whether this engine, on this machine, makes of a restored memory what the engine made that
it was captured from. It is no proof of where the bytes come from; that is the signature's part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotCorrupt

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from edgellm.store.format.fields import Fields

N_TOP: Final = 64
MAX_DIVERGENCE: Final = 0.1
"""Nats between what was said and what is said here."""
TIE: Final = 2.0
"""Logits by which the likeliest token may have been behind."""
_LITTLE: Final = 1e-12
_SLACK: Final = 1e-3
_F64: Final = "<f8"


@dataclass(frozen=True, slots=True)
class Probe:
    """The most probable next tokens, and how much there is in all.

    Attributes:
        token: decoded behind the prefix.
        log_sum: of the exponentials of all logits.
        ids: tokens, the likeliest first, at most `N_TOP`.
        logits: theirs, float32.
    """

    token: int
    log_sum: float
    ids: tuple[int, ...]
    logits: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order; numbers as the hex digits of their little-endian bytes."""
        return {
            "token": self.token,
            "log_sum": np.asarray(self.log_sum, _F64).tobytes().hex(),
            "ids": np.asarray(self.ids, "<u4").tobytes().hex(),
            "logits": np.asarray(self.logits, "<f4").tobytes().hex(),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a probe came out; `divergence` is in nats, infinite where a logit is not finite."""

    agrees: bool
    divergence: float
    same_top: bool


def take_probe(token: int, logits: NDArray[np.float32]) -> Probe:
    """Keep what matters of the logits that followed a token.

    Args:
        token: that was decoded.
        logits: shape (n_vocab,).

    Raises:
        ValueError: one is not finite: the memory behind them is not worth shipping.
    """
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite")
    top = np.argsort(-logits, kind="stable")[:N_TOP]
    return Probe(
        token=token,
        log_sum=_log_sum(logits),
        ids=tuple(int(i) for i in top),
        logits=tuple(float(logits[i]) for i in top),
    )


def compare(probe: Probe, logits: NDArray[np.float32]) -> Verdict:
    """Hold what an engine says now against what was said.

    The divergence (Kullback-Leibler, of what was said from what is said) is over the tokens of the
    probe and one more outcome for all others together.

    Args:
        probe: what was said.
        logits: shape (n_vocab,).
    """
    ids = np.asarray(probe.ids)
    if ids.max() >= logits.size or not np.isfinite(logits).all():
        return Verdict(agrees=False, divergence=float("inf"), same_top=False)
    before = _with_rest(np.exp(np.asarray(probe.logits, np.float64) - probe.log_sum))
    after = _with_rest(np.exp(logits[ids].astype(np.float64) - _log_sum(logits)))
    divergence = max(0.0, float((before * (np.log(before) - np.log(after))).sum()))
    top = int(logits.argmax())
    said = dict(zip(probe.ids, probe.logits, strict=True))
    # Where two tokens are about as likely, rounding decides which of them is first.
    near_top = said.get(top, float("-inf")) >= probe.logits[0] - TIE
    agrees = divergence <= MAX_DIVERGENCE and near_top
    return Verdict(agrees, divergence, same_top=top == probe.ids[0])


def read_probe(values: Fields, hex_digits: re.Pattern[str]) -> Probe:
    """Take a probe apart.

    Raises:
        SnapshotCorrupt: it is none.
    """
    token = values.number("token")
    log_sum = _numbers(values.text("log_sum", hex_digits), _F64, 1)
    ids = _numbers(values.text("ids", hex_digits), "<u4", N_TOP)
    logits = _numbers(values.text("logits", hex_digits), "<f4", N_TOP)
    values.finish()
    finite = np.isfinite(logits).all() and np.isfinite(log_sum).all()
    if not finite or len(ids) != len(logits) or len(set(ids.tolist())) != len(ids):
        raise SnapshotCorrupt("a probe of other numbers than logits")
    if (np.diff(logits) > 0).any() or logits[0] > log_sum[0] + _SLACK:
        raise SnapshotCorrupt("a probe that is out of order")
    return Probe(token, float(log_sum[0]), tuple(ids.tolist()), tuple(logits.tolist()))


def _numbers(text: str, dtype: str, most: int) -> NDArray[Any]:
    width = np.dtype(dtype).itemsize * 2
    if not text or len(text) % width or len(text) > most * width:
        raise SnapshotCorrupt(f"a probe's number of {len(text)} hex digits")
    return np.frombuffer(bytes.fromhex(text), dtype)


def _log_sum(logits: NDArray[np.float32]) -> float:
    wide = logits.astype(np.float64)  # in float32 the sum over a large vocabulary loses digits
    most = float(wide.max())
    return most + float(np.log(np.exp(wide - most).sum()))


def _with_rest(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the outcome that is none of these; nothing is quite impossible."""
    rest = max(0.0, 1.0 - float(parts.sum()))
    whole: NDArray[np.float64] = np.maximum(np.append(parts, rest), _LITTLE)
    return whole
