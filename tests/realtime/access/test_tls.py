"""Certificates from files: found wrong at the start, and spoken through."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect

from realtime.access.config import AccessConfig
from realtime.access.tls import TlsFiles, server_context
from realtime.client.connect import open_socket, speech_url
from realtime.client.speech import ConnectError, SpeechClient
from realtime.errors import ConfigError
from realtime.protocol import SPEECH_PATH
from tests.realtime.harness import FAST_CONFIG, Client, gateway, run, until
from tests.realtime.test_flow import LONG, PCM, SLOW, STEP_S, connect_raw

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed"
)


def make_files(folder, name, *more: str) -> TlsFiles:
    """A key and a certificate of its own for this machine."""
    files = TlsFiles(certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
        "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(files.key), "-out", str(files.certificate), *(more or ("-nodes",)),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> TlsFiles:
    return make_files(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> TlsFiles:
    return make_files(tmp_path_factory.mktemp("tls"), "others")


def test_good_files_are_taken_and_old_tls_is_not(ours):
    context = server_context(ours)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_missing_files_are_named(ours, tmp_path):
    with pytest.raises(ConfigError, match=r"certificate .*none\.pem cannot be read: No such file"):
        server_context(replace(ours, certificate=tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"key .*none\.key cannot be read: No such file"):
        server_context(replace(ours, key=tmp_path / "none.key"))


def test_broken_files_are_named(ours, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"certificate .*broken is no certificate"):
        server_context(replace(ours, certificate=broken))
    with pytest.raises(ConfigError, match=r"key .*broken is no private key"):
        server_context(replace(ours, key=broken))


def test_files_that_do_not_belong_together_are_named(ours, others):
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        server_context(replace(ours, key=others.key))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path):
    locked = make_files(tmp_path, "locked", "-passout", "pass:secret")
    with pytest.raises(ConfigError, match="without a password"):
        server_context(locked)


def test_a_server_with_bad_files_does_not_start(ours, others):
    access = AccessConfig(tls=replace(ours, key=others.key))

    async def scenario():
        async with gateway(replace(FAST_CONFIG, access=access)):
            pass

    with pytest.raises(ConfigError, match="does not belong"):
        run(scenario)


def test_speech_comes_through_tls(ours, monkeypatch):
    # What OpenSSL trusts beside the system's own authorities.
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.certificate))

    async def scenario():
        async with gateway(replace(FAST_CONFIG, access=AccessConfig(tls=ours))) as here:
            url = f"wss://127.0.0.1:{here.port}"
            async with SpeechClient(url) as client:
                speech = await client.speak("Nobody listens in. " * 20)
                assert len(await speech.pcm()) == speech.result.n_samples > 0
                socket = client._socket.transport.get_extra_info("ssl_object")
                assert socket.version() in ("TLSv1.2", "TLSv1.3")
            with pytest.raises(ConnectError):
                await open_socket(speech_url(f"ws://127.0.0.1:{here.port}"), 5.0)

    run(scenario)


def test_a_client_that_vanishes_within_tls_frees_the_engine(ours):
    async def scenario():
        config = replace(FAST_CONFIG, access=AccessConfig(tls=ours))
        async with gateway(config, by_hand=True) as here:
            url = f"wss://127.0.0.1:{here.port}{SPEECH_PATH}"
            trusts = ssl.create_default_context(cafile=ours.certificate)
            async with connect(url, ssl=trusts, compression=None, proxy=None) as socket:
                await Client(socket).text("Is anybody there?")
                await until(lambda: here.engine.streams)
                socket.transport.abort()
            await until(lambda: here.engine.streams[0].is_aborted)

    run(scenario)


def test_a_client_that_does_not_read_within_tls_is_let_go(ours):
    """The layer of TLS has a buffer of its own: sends must wait for that one too."""

    async def scenario():
        config = replace(SLOW, access=AccessConfig(tls=ours))
        async with gateway(config, step_s=STEP_S) as here:
            raw = await connect_raw(here)
            url = f"wss://127.0.0.1:{here.port}{SPEECH_PATH}"
            trusts = ssl.create_default_context(cafile=ours.certificate)
            options = {"compression": None, "proxy": None, "max_queue": 1, "close_timeout": 0.1}
            async with connect(url, ssl=trusts, sock=raw, **options) as socket:
                client = Client(socket)
                await client.event("session.created")
                await client.send("session.update", session=PCM)
                await client.event("session.updated")
                await client.text(LONG)
                await until(lambda: any(one.pauses for one in here.engine.streams))
                assert here.sample("parley_queue_seconds") < 3.0
                await until(lambda: here.sample("parley_closes_total", code="1013") == 1)
                await until(lambda: not here.engine.n_open)

    run(scenario)


def test_a_certificate_that_nobody_vouches_for_is_said_so(ours):
    async def scenario():
        async with gateway(replace(FAST_CONFIG, access=AccessConfig(tls=ours))) as here:
            with pytest.raises(ConnectError, match=r"not trusted .*SSL_CERT_FILE"):
                await open_socket(speech_url(f"wss://127.0.0.1:{here.port}"), 5.0)

    run(scenario)


def test_tls_towards_a_server_without_it_is_said_so():
    async def scenario():
        async with gateway() as here:
            with pytest.raises(ConnectError, match="does not speak TLS"):
                await open_socket(speech_url(f"wss://127.0.0.1:{here.port}"), 5.0)

    run(scenario)
