"""Certificate and key of the server, read once at the start, with faults that say what to do."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from realtime.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where they are, both in PEM form.

    Args:
        certificate: of the server, followed by those that vouch for it.
        key: that belongs to it, without a password.
    """

    certificate: Path
    key: Path


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and newer with this certificate.

    Raises:
        ConfigError: a file is missing, is not what it should be, or they do not belong together.
    """
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"TLS {what} {path} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password: else a terminal is asked, and a server would wait there for ever.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_message(files, error)) from None
    return context


def _message(files: TlsFiles, error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"TLS key {files.key} does not belong to the certificate {files.certificate}"
    if not _is_certificate(files.certificate):
        return f"TLS certificate {files.certificate} is no certificate in PEM form"
    return f"TLS key {files.key} is no private key in PEM form without a password"


def _is_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError):
        return False
    return True
