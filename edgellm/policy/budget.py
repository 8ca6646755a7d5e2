"""What a request may cost at most, and whether the budget allows it: whole numbers, no clock, no file.

Money is counted in millionths of a dollar, as integers: a price of one dollar for a million tokens is
one such unit a token. Costs are rounded up and limits down, so that no sum of roundings overspends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Final, Literal

from edgellm.policy.permits import is_loopback
from edgellm.routing import origin_of

if TYPE_CHECKING:
    from edgellm.policy.route import BudgetState
    from edgellm.routing import Budget, Endpoint

Signal = Literal["below", "approaching", "reached"]

MICRO: Final = 1_000_000
ANSWER_TOKENS: Final = 4096
"""Put aside for an answer without `max_tokens`; the request must then be sent with this limit."""
_APPROACHING: Final = 0.8


@dataclass(frozen=True, slots=True)
class Prices:
    """What tokens cost, in millionths of a dollar for a million of them.

    Attributes:
        prompt: of the prompt's tokens.
        answer: of the answer's.
    """

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Amount:
    """What was, or is to be, taken of a budget.

    Attributes:
        micro_usd: money, in millionths of a dollar.
        tokens: of prompt and answer together.
        n_bytes: sent out.
    """

    micro_usd: int = 0
    tokens: int = 0
    n_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.micro_usd + other.micro_usd,
            self.tokens + other.tokens,
            self.n_bytes + other.n_bytes,
        )


@dataclass(frozen=True, slots=True)
class Need:
    """The most that one request can take.

    Attributes:
        origin: scheme, host and port of the endpoint.
        model: that is asked there.
        most: of each kind; its money is 0 where the price is not known.
        prices: of the endpoint, or None where they are not known.
        answer_tokens: longest answer that is paid for; the request must carry it.
        before_micro_usd: money that was taken for the same answer before.
    """

    origin: str
    model: str
    most: Amount
    prices: Prices | None
    answer_tokens: int
    before_micro_usd: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be taken; None is no limit of that kind.

    Attributes:
        micro_usd_per_day: by all programs together.
        micro_usd_per_request: by one answer.
        tokens_per_day: by all programs together.
        bytes_per_day: by all programs together.
        app_micro_usd_per_day: by one program, as its consent says.
        allow_unpriced: whether a price that is not known is no obstacle.
    """

    micro_usd_per_day: int | None = None
    micro_usd_per_request: int | None = None
    tokens_per_day: int | None = None
    bytes_per_day: int | None = None
    app_micro_usd_per_day: int | None = None
    allow_unpriced: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was put aside for one request, before a byte of it was sent.

    Attributes:
        reservation_id: its name in the ledger.
        origin, model: for whom.
        most: what was put aside.
        answer_tokens: longest answer that it pays for.
    """

    reservation_id: str
    origin: str
    model: str
    most: Amount
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """Whether a request may be made.

    Attributes:
        state: as `decide` takes it.
        reason: which limit is in the way, with its numbers; "" for enough.
    """

    state: BudgetState
    reason: str = ""


def prices_of(endpoint: Endpoint) -> Prices | None:
    """Return an endpoint's prices, rounded up; a server on this machine costs nothing by itself."""
    given = (endpoint.usd_per_mtok_in, endpoint.usd_per_mtok_out)
    if given == (None, None):
        return Prices(0, 0) if is_loopback(endpoint.url) else None
    if None in given and not is_loopback(endpoint.url):
        return None  # half a price is none
    return Prices(*(_micro(usd or 0.0, ROUND_CEILING) for usd in given))


def need_of(
    endpoint: Endpoint, n_bytes: int, max_tokens: int | None, before_micro_usd: int = 0
) -> Need:
    """Return the most that a request can take.

    A token of a prompt has one byte or more, and the body holds more than the prompt's text; the
    few tokens that a server's template adds are fewer than the bytes of JSON around each message.

    Args:
        endpoint: that is to be asked.
        n_bytes: length of the request's body.
        max_tokens: longest answer, or None for `ANSWER_TOKENS`.
        before_micro_usd: money that earlier requests for the same answer took.
    """
    answer = ANSWER_TOKENS if max_tokens is None else max_tokens
    prices = prices_of(endpoint)
    money = cost(prices, n_bytes, answer) if prices else 0
    most = Amount(money, n_bytes + answer, n_bytes)
    return Need(origin_of(endpoint.url), endpoint.model, most, prices, answer, before_micro_usd)


def more_of(need: Need, tokens: int) -> Need:
    """Return what an answer needs besides, that may be so many tokens longer than was paid for."""
    money = cost(need.prices, 0, tokens) if need.prices else 0
    before = need.before_micro_usd + need.most.micro_usd
    return replace(need, most=Amount(money, tokens), answer_tokens=tokens, before_micro_usd=before)


def cost(prices: Prices, prompt_tokens: int, answer_tokens: int) -> int:
    """Return what tokens cost, in millionths of a dollar, rounded up."""
    return -(-(prompt_tokens * prices.prompt + answer_tokens * prices.answer) // MICRO)


def limits_of(budget: Budget, app_micro_usd_per_day: int | None = None) -> Limits:
    """Return a budget in whole numbers, with what a program's consent allows it."""
    return Limits(
        micro_usd_per_day=_limit(budget.usd_per_day),
        micro_usd_per_request=_limit(budget.usd_per_request),
        tokens_per_day=budget.tokens_per_day,
        bytes_per_day=budget.bytes_per_day,
        app_micro_usd_per_day=app_micro_usd_per_day,
        allow_unpriced=budget.allow_unpriced,
    )


def allowance(need: Need, limits: Limits, day: Amount, app_day: Amount) -> Allowance:
    """Return whether a request fits what is left.

    Args:
        need: the most that it can take.
        limits: of the budget and of the consent.
        day: what was taken and put aside since midnight UTC.
        app_day: of it, by the program that asks.
    """
    if need.prices is None and not limits.allow_unpriced:
        return Allowance("unpriced", f"the price of {need.model} at {need.origin} is not known")
    money, after = need.most.micro_usd, day + need.most
    app_after = app_day.micro_usd + money
    none = next((name for name, limit in _limits(limits) if limit == 0), None)
    if none is not None:  # also where the request itself would cost nothing
        return Allowance("exceeded", f"budget.{none} is 0")
    for name, value, limit in (
        ("budget.usd_per_request", need.before_micro_usd + money, limits.micro_usd_per_request),
        ("budget.usd_per_day", after.micro_usd, limits.micro_usd_per_day),
        ("the consent", app_after, limits.app_micro_usd_per_day),
    ):
        if limit is not None and value > limit:
            reason = f"{name} is {format_usd(limit)}, and this could come to {format_usd(value)}"
            return Allowance("exceeded", reason)
    for name, value, limit in (
        ("budget.tokens_per_day", after.tokens, limits.tokens_per_day),
        ("budget.bytes_per_day", after.n_bytes, limits.bytes_per_day),
    ):
        if limit is not None and value > limit:
            return Allowance("exceeded", f"{name} is {limit}, and this could come to {value}")
    return Allowance("enough")


def signal(day: Amount, limits: Limits) -> Signal:
    """Return how near a day's use is to the nearest of its limits."""
    used = [
        value / limit if limit else 1.0
        for value, limit in (
            (day.micro_usd, limits.micro_usd_per_day),
            (day.tokens, limits.tokens_per_day),
            (day.n_bytes, limits.bytes_per_day),
        )
        if limit is not None
    ]
    most = max(used, default=0.0)
    return "reached" if most >= 1 else "approaching" if most >= _APPROACHING else "below"


def micro_usd(usd: float) -> int:
    """Return an amount of money in millionths of a dollar, rounded down."""
    return _micro(usd, ROUND_FLOOR)


def format_usd(micro: int) -> str:
    """Return money for people: `$0.50`, or with as many digits as it has."""
    whole, part = divmod(micro, MICRO)
    digits = f"{part:06d}".rstrip("0").ljust(2, "0")
    return f"${whole}.{digits}"


def _limits(limits: Limits) -> tuple[tuple[str, int | None], ...]:
    return (
        ("usd_per_request", limits.micro_usd_per_request),
        ("usd_per_day", limits.micro_usd_per_day),
        ("tokens_per_day", limits.tokens_per_day),
        ("bytes_per_day", limits.bytes_per_day),
    )


def _limit(usd: float | None) -> int | None:
    return None if usd is None else micro_usd(usd)


def _micro(usd: float, rounding: str) -> int:
    """Round a decimal number as it was written, not as a binary fraction holds it."""
    return int((Decimal(str(usd)) * MICRO).to_integral_value(rounding))
