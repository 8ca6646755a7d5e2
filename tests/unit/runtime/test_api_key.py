"""Where the key of an endpoint comes from."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from edgellm.runtime.api_key import api_key

ORIGIN = "https://api.example.com"


class KeyringError(Exception):
    pass


class NoKeyringError(KeyringError, RuntimeError):
    pass


class KeyringLocked(KeyringError):
    pass


@pytest.fixture
def keyring(monkeypatch):
    """A keyring with one entry; `.broken` is what it raises instead."""
    module, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    module.kept = {("edgellm", ORIGIN): "sk-kept"}
    module.broken = None
    module.errors = errors
    errors.KeyringError, errors.NoKeyringError = KeyringError, NoKeyringError

    def get_password(service: str, name: str) -> str | None:
        if module.broken is not None:
            raise module.broken
        return module.kept.get((service, name))

    module.get_password = get_password
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return module


def test_the_variable_comes_first(keyring) -> None:
    """White space around it is not part of it; an empty one is none."""
    assert api_key(ORIGIN, {"EDGELLM_API_KEY": " sk-set\n"}) == "sk-set"
    assert api_key(ORIGIN, {"EDGELLM_API_KEY": " "}) == "sk-kept"


def test_the_keyring_has_one_for_each_origin(keyring) -> None:
    """Another server gets no key of this one."""
    assert api_key(ORIGIN, {}) == "sk-kept"
    assert api_key("https://other.example.com", {}) is None


def test_without_a_keyring_there_is_no_key(keyring, monkeypatch, caplog) -> None:
    """No package and no keyring are no reason to say anything."""
    keyring.broken = NoKeyringError("none")
    assert api_key(ORIGIN, {}) is None
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert api_key(ORIGIN, {}) is None
    assert caplog.text == ""


def test_a_locked_keyring_is_said(keyring, caplog) -> None:
    """By the kind of its error alone: its text may hold anything."""
    keyring.broken = KeyringLocked("sk-kept is locked away")
    assert api_key(ORIGIN, {}) is None
    assert "KeyringLocked" in caplog.text
    assert "sk-kept" not in caplog.text
