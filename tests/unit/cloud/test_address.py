from __future__ import annotations

import pytest

from edgellm.cloud.address import address_of
from edgellm.errors import UsageError
from edgellm.routing import is_loopback_host


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://H", "http://h/v1/chat/completions"),
        ("http://H/", "http://h/v1/chat/completions"),
        ("http://H/v1", "http://h/v1/chat/completions"),
        ("http://H/v1/", "http://h/v1/chat/completions"),
        ("http://H//v1//", "http://h/v1/chat/completions"),
        ("http://H/api/v1", "http://h/api/v1/chat/completions"),
        ("http://H/v1beta/openai", "http://h/v1beta/openai/chat/completions"),
        ("http://H/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        (
            "http://H/openai/deployments/x?api-version=y",
            "http://h/openai/deployments/x/chat/completions?api-version=y",
        ),
        ("http://H/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://H/v1/chat/completions/", "http://h/v1/chat/completions"),
        ("http://H:8080/x/chat/completions?a=b", "http://h:8080/x/chat/completions?a=b"),
        ("https://H:443", "https://h/v1/chat/completions"),
        ("https://H:80", "https://h:80/v1/chat/completions"),
        ("HTTP://H:80/v1", "http://h/v1/chat/completions"),
        ("http://[::1]:9/v1", "http://[::1]:9/v1/chat/completions"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example/v1/chat/completions"),
    ],
)
def test_every_spelling_of_a_base_reaches_the_one_path(given: str, asked: str) -> None:
    """With or without `/v1`, a slash at the end or twice, a query, or the whole address."""
    assert address_of(given).url == asked


def test_models_are_listed_beside_the_completions() -> None:
    """The list of models has the same base and the same query."""
    assert address_of("http://h:1/a/v1?q=1").models_url == "http://h:1/a/v1/models?q=1"


@pytest.mark.parametrize(
    "url",
    ["", "h:8080", "localhost:8080/v1", "ftp://h", "http://", "http:///v1", "http://h:x", "//h/v1",
     "http://h:99999", "http://a b/", "http://h/\nv1", "http://[::1/v1", "http://h\x00/", " http://h/v1\n",
     "http://bücher.example", "http://h/bücher", "http://h/v1?ü",
     "http://999.1.1.1", "http://1.2.3", "http://127.1", "http://2130706433", "http://0x7f.0.0.1",
     "http://0177.0.0.1", "http://127.0.0.1.", "http://a..b", "http://a-.b", "http://" + "a" * 64],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    """A URL without a scheme, a host or a possible port, or with blanks, is a usage error."""
    with pytest.raises(UsageError):
        address_of(url)


def test_a_secret_in_a_url_is_refused_and_not_repeated() -> None:
    """A user name or password in the address is refused, and the message does not show it."""
    with pytest.raises(UsageError) as caught:
        address_of("https://me:hunter2@h/v1")
    assert "hunter2" not in str(caught.value)


def test_an_address_is_shown_without_its_query() -> None:
    """A query may hold a key: what is shown has none."""
    assert str(address_of("https://h/v1?key=hunter2")) == "https://h/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("HTTPS://H.Example:443/v1?x#y", "https://h.example"),
        ("http://h:80", "http://h"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://[::1]:80/", "http://[::1]"),
        ("http://[0:0:0:0:0:0:0:1]", "http://[::1]"),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str) -> None:
    """Scheme and host in lower case, the port only where it is not the scheme's own."""
    assert address_of(url).origin == origin
    assert address_of(origin).origin == origin


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("a.localhost", False),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("127.0.0.1.evil.com", False),
        ("localhost.evil.com", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104  # an address to ask, none to serve
    ],
)
def test_only_this_machine_is_loopback(host: str, is_here: bool) -> None:
    """Names and numbers that can only be this machine, and no name that begins like one."""
    assert is_loopback_host(host) is is_here
