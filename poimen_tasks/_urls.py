"""Redis URLs as kombu and Celery take them, turned into those that redis-py takes; and hiding their passwords."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

__all__ = ["REDIS_SCHEMES", "URL_RULE", "client_url", "mask_url", "split_urls"]

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket")
URL_RULE = "a redis://, rediss://, unix:// or redis+socket:// URL"

_SECRET_OPTION = re.compile(r"([?&;](?:[\w.-]*password|passwd|token|secret)=)[^&;]*", re.IGNORECASE)
_CREDENTIALS = re.compile(r"\A(.*?://)?(.*)@", re.DOTALL)
_CERT_REQS = {"cert_required": "required", "cert_optional": "optional", "cert_none": "none"}
_OPTIONS = frozenset({
    "db", "username", "password", "socket_timeout", "socket_connect_timeout", "socket_keepalive", "max_connections",
    "health_check_interval", "client_name",
})  # fmt: skip


def mask_url(url: str) -> str:
    """The URL without its password: for logs, errors and `repr`. Also takes several URLs joined by `;`.

    Where it is unclear what the password is, more is hidden rather than less.
    """
    return ";".join(_mask_one(part) for part in re.split(r";(?=[\w+.-]+://)", url))


def _mask_one(url: str) -> str:
    return _SECRET_OPTION.sub(r"\1***", _CREDENTIALS.sub(_mask_credentials, url, count=1))


def _mask_credentials(match: re.Match[str]) -> str:
    scheme, (user, colon, _) = match[1], match[2].partition(":")
    return f"{scheme}{user}:***@" if scheme and colon and re.fullmatch(r"[\w.-]*", user) else f"{scheme or ''}***@"


def split_urls(source: Any) -> list[str]:
    """The URLs of a broker or backend setting: Celery takes one, several joined by `;`, or a list of them."""
    parts = re.split(r";(?=[\w+.-]+://)", source) if isinstance(source, str) else source
    return [url for url in parts if isinstance(url, str) and "://" in url] if isinstance(parts, (list, tuple)) else []


def client_url(url: str, *, strict: bool) -> str:
    """Translate a URL as kombu and Celery take it to one that redis-py takes.

    Args:
        url: the URL.
        strict: refuse an option that is not the client's; otherwise (it is meant for kombu then) drop it.

    Raises:
        ValueError: saying what is expected instead.
    """
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES or "://" not in url:
        raise ValueError(URL_RULE)
    if parts.scheme in {"redis", "rediss"}:
        _check_host(parts.path.strip("/"), url)
    elif not parts.path.strip("/"):
        raise ValueError("unix:///path/of/the/socket")
    scheme = "unix" if parts.scheme == "redis+socket" else parts.scheme
    query = urlencode(_client_options(parts.query, strict=strict), safe="/")
    return f"{scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"


def _check_host(database: str, url: str) -> None:
    try:
        urlsplit(url).port  # noqa: B018 - reading it checks it
    except ValueError:
        raise ValueError("a port from 0 to 65535; write @ : / in a password as %40 %3A %2F") from None
    if database and not database.isdecimal():
        raise ValueError("the number of a database behind the host, as in redis://host:6379/0")


def _client_options(query: str, *, strict: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        option = "db" if name == "virtual_host" else name
        if option in _OPTIONS or option.startswith("ssl_"):
            options[option] = _CERT_REQS.get(value.lower(), value) if option == "ssl_cert_reqs" else value
        elif strict:
            raise ValueError(f"no option {name!r} in the URL; allowed are {', '.join(sorted(_OPTIONS))} and ssl_*")
    return options
