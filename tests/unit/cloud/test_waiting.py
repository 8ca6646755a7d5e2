from __future__ import annotations

import pytest

from edgellm.cloud.waiting import asked_wait_s

NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"Retry-After": "1"}, 1.0),
        ({"Retry-After": " 90 "}, 90.0),
        ({"retry-after": "86400"}, 86400.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"Retry-After": "-3"}, 0.0),
        ({"retry-after-ms": "300"}, 0.3),
        ({"retry-after-ms": "300", "Retry-After": "9"}, 0.3),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"Retry-After": "Wed, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        (
            {
                "Retry-After": "Wed, 01 Jan 2020 00:00:10 GMT",
                "Date": "Wed, 01 Jan 2020 00:00:03 GMT",
            },
            7.0,
        ),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Wed, 99 Jan 2020 00:00:00 GMT"}, None),
        ({"Retry-After": ""}, None),
    ],
)
def test_a_wait_is_read_in_every_form(headers: dict[str, str], wait_s: float | None) -> None:
    """Seconds, milliseconds, dates by the server's clock; nonsense is no wait."""
    assert asked_wait_s(headers, NOW_S) == wait_s
