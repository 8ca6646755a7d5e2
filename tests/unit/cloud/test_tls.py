from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgellm.cloud.address import address_of
from edgellm.cloud.tls import proxy_for, trust_for
from edgellm.core import Message, Request
from edgellm.errors import EndpointError
from edgellm.routing import Endpoint

REQUEST = Request((Message("user", "hi"),))
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True)
class Company:
    """A private authority, another one, and a server that the first one vouches for."""

    ca_file: Path
    other_file: Path
    server: ssl.SSLContext


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Company:
    """Make the certificates once."""
    folder = tmp_path_factory.mktemp("company")
    ca, other = _authority("ca"), _authority("other")
    (folder / "ca.pem").write_bytes(_pem(ca[0]))
    (folder / "other.pem").write_bytes(_pem(other[0]))
    certificate, key = _server(*ca)
    (folder / "server.pem").write_bytes(_key_pem(key) + _pem(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return Company(folder / "ca.pem", folder / "other.pem", context)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *(n.upper() for n in PROXIES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


Greet = Callable[..., str]


@pytest.fixture
def greet(scripted, client_for, cleared, company: Company) -> Greet:
    """Return a function that asks a server behind the company's certificate."""

    def run(**settings: Any) -> str:
        def handle(line: Any) -> None:
            line.stream(scripted.chunk("Hello", "stop"))

        with scripted.serving(handle, company.server) as server:
            client = client_for(server.url, **settings)
            events = list(client.stream(REQUEST, cleared(client)))
        return "".join(getattr(event, "text", "") for event in events)

    return run


def test_the_endpoints_own_file_is_trusted(greet: Greet, company: Company) -> None:
    """`ca_file` goes before the environment."""
    assert greet(ca_file=str(company.ca_file)) == "Hello"


def test_the_file_of_the_environment_is_trusted(
    greet: Greet, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SSL_CERT_FILE`, as other programs read it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(company.ca_file))
    assert greet() == "Hello"
    with pytest.raises(EndpointError, match=r"other\.pem"):
        greet(ca_file=str(company.other_file))


@pytest.mark.parametrize("how", ["ca_file", "SSL_CERT_FILE", "system"])
def test_a_certificate_nobody_vouches_for(
    how: str, greet: Greet, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, nothing is sent, and the error names the certificates that counted."""
    if how == "SSL_CERT_FILE":
        monkeypatch.setenv(how, str(company.other_file))
    settings = {"ca_file": str(company.other_file)} if how == "ca_file" else {}
    with pytest.raises(EndpointError) as caught:
        greet(**settings)
    assert (caught.value.kind, caught.value.may_retry) == ("certificate", False)
    assert how == "system" or f"other.pem ({'the endpoint' if settings else how}" in str(
        caught.value
    )
    assert "SSL_CERT_FILE" in caught.value.hint


def test_a_name_that_is_not_the_certificates(
    scripted, client_for, cleared, company: Company
) -> None:
    """The right authority for another host is not enough."""
    with scripted.serving(lambda line: line.stream(), company.server) as server:
        client = client_for(f"https://localhost:{server.port}", ca_file=str(company.ca_file))
        with pytest.raises(EndpointError) as caught:
            client.stream(REQUEST, cleared(client))
    assert caught.value.kind == "certificate"
    assert server.asked == []


@pytest.mark.parametrize("content", [None, b"no certificate", b""])
def test_a_file_that_is_none(content: bytes | None, greet: Greet, tmp_path: Path) -> None:
    """A file that is missing or holds no certificate is named."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EndpointError) as caught:
        greet(ca_file=str(path))
    assert caught.value.kind == "certificate"
    assert str(path) in str(caught.value)


def test_tls_where_none_is_spoken(scripted, client_for, cleared) -> None:
    """An https address for a port that speaks http: the hint says so."""
    with scripted.serving(lambda line: line.reply(200)) as server:
        client = client_for(server.url.replace("http:", "https:"))
        with pytest.raises(EndpointError) as caught:
            client.stream(REQUEST, cleared(client))
    assert caught.value.kind == "connect"
    assert "http://" in caught.value.hint


def test_plain_http_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong `SSL_CERT_FILE` does not disturb what needs none."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert trust_for(address_of("http://h"), "").source == ""


@pytest.mark.parametrize("is_allowed", [True, False])
def test_loopback_never_goes_through_a_proxy(
    is_allowed: bool, scripted, client_for, cleared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every proxy variable set, and even where proxies count, the proxy sees no byte."""
    with (
        scripted.serving(lambda line: line.reply(502)) as proxy,
        scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as server,
    ):
        for name in PROXIES[:3]:
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        client = client_for(server.url, uses_proxy=is_allowed)
        list(client.stream(REQUEST, cleared(client)))
    assert (proxy.n_connections, server.n_connections) == (0, 1)


@pytest.mark.parametrize(
    ("url", "uses_proxy", "variables", "proxy"),
    [
        ("https://h", False, {"https_proxy": "http://p:1"}, None),
        ("https://h", True, {"https_proxy": "http://p:1"}, "http://p:1"),
        ("https://h", True, {"HTTPS_PROXY": "p:1"}, "http://p:1"),
        ("https://h", True, {"all_proxy": "http://p:1"}, "http://p:1"),
        ("https://h", True, {"http_proxy": "http://p:1"}, None),
        ("https://h.in", True, {"https_proxy": "http://p:1", "no_proxy": ".in"}, None),
        ("https://h", True, {}, None),
        ("https://127.0.0.1", True, {"https_proxy": "http://p:1"}, None),
        ("http://localhost:1", True, {"http_proxy": "http://p:1"}, None),
    ],
)
def test_proxy_variables_count_only_where_an_endpoint_says_so(
    url: str,
    uses_proxy: bool,
    variables: dict[str, str],
    proxy: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And then as they do elsewhere, exceptions included."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(address_of(url), Endpoint(url, "m", uses_proxy=uses_proxy)) == proxy


def test_a_request_goes_through_the_proxy_it_should(
    scripted, client_for, cleared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy gets the whole address, for a host it alone knows; its failure names no secret."""
    with scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:SECRET@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("https_proxy", f"http://me:SECRET@127.0.0.1:{proxy.port}")
        client = client_for("http://nowhere.invalid/v1", uses_proxy=True)
        list(client.stream(REQUEST, cleared(client)))
        tunnel = client_for("https://nowhere.invalid/v1", uses_proxy=True)
        with pytest.raises(EndpointError) as caught:  # it answers CONNECT with 200, and no TLS
            tunnel.stream(REQUEST, cleared(tunnel))
    assert proxy.asked[0].path == "http://nowhere.invalid/v1/chat/completions"
    assert proxy.asked[1].method == "CONNECT"
    assert caught.value.kind == "connect"
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["socks5", "gopher"])
def test_a_proxy_of_another_kind_is_told(
    scheme: str, client_for, cleared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its package is missing, or nobody knows the kind."""
    monkeypatch.setenv("http_proxy", f"{scheme}://me:SECRET@127.0.0.1:9")
    client = client_for("http://nowhere.invalid", uses_proxy=True)
    with pytest.raises(EndpointError) as caught:
        client.stream(REQUEST, cleared(client))
    assert caught.value.kind == "connect"
    assert "SECRET" not in str(caught.value)


def _authority(name: str) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    built = _builder(subject, subject, key).add_extension(x509.BasicConstraints(True, None), True)
    return _signed(built, key), key


def _server(authority: Any, authority_key: Any) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = _builder(subject, authority.subject, key).add_extension(names, False)
    return _signed(built, authority_key), key


def _builder(subject: Any, issuer: Any, key: Any) -> Any:
    from cryptography import x509

    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _signed(built: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return built.sign(key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
