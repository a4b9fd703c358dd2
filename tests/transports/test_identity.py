"""Azure without a key: the machine's managed identity gets a token, and storage accepts it.

The identity endpoint is a loopback server that answers as Azure's does; Azurite takes tokens over TLS and checks them.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.testing.azurite import Azurite
from stepfast.transports.blob import Address, BlobStore
from stepfast.transports.contract import Outgoing, TransportRefusedError
from stepfast.transports.open import TransportSettings, open_transport
from stepfast.transports.storage_queue import StorageQueueTransport
from stepfast_emulators.service_bus import ServiceBusEmulator

STORAGE = "https://storage.azure.com"


@dataclass
class Office:
    """Where tokens come from, and what was asked there."""

    port: int = 0
    audience: str = STORAGE
    asked: list[str] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)

    def token(self) -> str:
        now = int(time.time())
        claims = {
            "aud": self.audience,
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + 3600,
        }
        parts = [{"alg": "RS256", "typ": "JWT"}, claims]
        return ".".join([*(_coded(json.dumps(it).encode()) for it in parts), _coded(b"unsigned")])


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    found = Office()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(parse_qs(urlsplit(self.path).query)["resource"][0])
            found.headers.append(self.headers.get("X-IDENTITY-HEADER"))
            answer = {
                "access_token": found.token(),
                "expires_on": str(int(time.time()) + 3600),
                "resource": found.asked[-1],
                "token_type": "Bearer",
            }
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{found.port}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "of-this-machine")
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.1, signed by itself; the key beside it."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path = folder / "cert.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[Azurite]:
    with Azurite(certificate=certificate, key=certificate.with_name("key.pem")) as found:
        yield found


def test_queues_by_the_identity_of_the_machine(office: Office, secure: Azurite, certificate: Path) -> None:
    async def journey() -> list[str]:
        async with StorageQueueTransport(
            account=secure.endpoint("queue"), connection_verify=str(certificate)
        ) as transport:
            await transport.ensure(queue)
            await transport.send(queue, [Outgoing(id="m-1", body="{}")])
            found = await transport.receive(
                queue, at_most=1, wait=timedelta(seconds=5), hold=timedelta(seconds=30)
            )
            await transport.complete(found[0])
            return [it.id for it in found]

    queue = f"q{new_id()[-12:]}"

    assert asyncio.run(journey()) == ["m-1"]
    assert set(office.asked) == {STORAGE}
    assert set(office.headers) == {"of-this-machine"}


def test_blobs_by_the_identity_of_the_machine(office: Office, secure: Azurite, certificate: Path) -> None:
    address = Address(f"c{new_id()[-12:]}", "watermark.json")
    settings = TransportSettings(storage_account=secure.endpoint("blob"))

    with BlobStore(settings, connection_verify=str(certificate)) as store:
        store.create(address, b"1")
        found = store.read(address)

    assert found is not None
    assert found.content == b"1"
    assert set(office.asked) == {STORAGE}


def test_a_token_for_something_else_is_refused(office: Office, secure: Azurite, certificate: Path) -> None:
    office.audience = "https://vault.azure.net"
    settings = TransportSettings(storage_account=secure.endpoint("blob"))

    with (
        BlobStore(settings, connection_verify=str(certificate)) as store,
        pytest.raises(TransportRefusedError) as refused,
    ):
        store.look(Address("exports", "a.json"))

    assert "eyJ" not in str(refused.value)


async def test_service_bus_takes_the_identity_of_the_machine(office: Office) -> None:
    office.audience = "https://servicebus.azure.net"
    with ServiceBusEmulator() as emulator:
        emulator.add_queue("work")
        here = f"127.0.0.1:{emulator.port}"

        async with open_transport(
            f"service-bus://{here}", TransportSettings(azure_hosts=(here,))
        ) as transport:
            await transport.send("work", [Outgoing(id=new_id(), body="{}")])
        taken = emulator.content("work").ready

        office.audience = STORAGE
        async with open_transport(
            f"service-bus://{here}", TransportSettings(azure_hosts=(here,))
        ) as transport:
            with pytest.raises(TransportRefusedError, match="InvalidAudience"):
                await transport.send("work", [Outgoing(id=new_id(), body="{}")])

    assert taken == 1
    assert {it.rstrip("/") for it in office.asked} == {"https://servicebus.azure.net"}


async def test_a_host_outside_of_azure_is_not_given_the_token_of_the_machine(office: Office) -> None:
    office.audience = "https://servicebus.azure.net"
    with ServiceBusEmulator() as emulator:
        emulator.add_queue("work")

        with pytest.raises(ConfigurationError, match="STEPFAST_AZURE_HOSTS"):
            async with open_transport(
                f"service-bus://127.0.0.1:{emulator.port}", TransportSettings()
            ) as transport:
                await transport.send("work", [Outgoing(id=new_id(), body="{}")])

    assert office.asked == []
