"""The demo's service over TLS, SASL and ACLs; and what is told where one of them does not fit."""

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from kworker.clients.redis import RedisClaims
from kworker.config import toml_file
from kworker.core.claim import Exchange
from kworker.errors import ClientRejected, ExitCode
from kworker.preflight.findings import Finding
from kworker.preflight.redis import check_redis
from tests.e2e.conftest import Meanwhile
from tests.support.kafka import New, Writer, create_topic, read_all
from tests.support.kafka_rights import documented_rights
from tests.support.orders_example import FOLDER, billing, imported
from tests.support.secured import SecuredKafka, SecuredRedis, secured_redis
from tests.support.service import ROOT, Service
from tests.support.spark_service import SLOW_S
from tests.support.waiting import eventually

Done = subprocess.CompletedProcess[str]
Login = Mapping[str, str]
Port = Callable[[], int]

PASSWORD, KEYS = "canary-of-the-user", "canary-of-the-keys"
ORDERS = 200
TOOLS = [("transactions", "list"), ("lag",), ("dead", "list"), ("dead", "redrive")]


def documented_rights_in_redis() -> list[str]:
    """Those that SECURITY.md lists for the service `orders`."""
    text = (ROOT / "SECURITY.md").read_text()
    [line] = re.findall(r"^ACL SETUSER orders on >PASSWORD (.*)$", text, re.MULTILINE)
    return line.split()


# -- what fits --------------------------------------------------------------------------


@contextmanager
def demo(folder: Path, kafka: SecuredKafka, environment: Mapping[str, str]) -> Iterator[Service]:
    """The orders example as it is in the repository; what differs is in the environment."""
    made = Service(folder, kafka.bootstrap, ["orders"], name="orders", environment=environment)
    leftovers = shutil.ignore_patterns(".*", "__pycache__", "data")
    shutil.copytree(FOLDER, folder, ignore=leftovers, dirs_exist_ok=True)
    try:
        yield made
    finally:
        made.end()


def orders() -> Iterator[New]:
    with imported("produce") as (produce,):
        for order in produce.orders(ORDERS, datetime.now(UTC)):
            value, key = json.dumps(order).encode(), order["customer"].encode()
            yield New(str(order["order_id"]), value, key)


def test_the_demos_service_runs_over_tls_and_sasl(
    tmp_path: Path, secured_kafka: SecuredKafka, free_port: Port
) -> None:
    """All its clients: workers, delays, Redis, Spark, and the tools; some orders come again.

    Kafka and Redis let it do what SECURITY.md lists, and nothing else.
    """
    login = secured_kafka.login(tmp_path, PASSWORD, keys=KEYS, rights=documented_rights())
    authority, rights = secured_kafka.authority, documented_rights_in_redis()
    with (
        billing("--put-off-every", "100") as url,
        secured_redis(tmp_path / "redis", free_port(), authority, PASSWORD, rights) as redis,
        demo(
            tmp_path / "orders",
            secured_kafka,
            {
                "BILLING_URL": url,
                "KWORKER_STATE_DIR": "state",
                "KWORKER_KAFKA": json.dumps(login),
                "KWORKER_IDEMPOTENCY": json.dumps({"redis": redis.url, "key": "json:order_id"}),
                "KWORKER_SPARK__TRIGGER": "1s",
                "KWORKER_CONSOLE__LISTEN": "",
            },
        ) as service,
    ):
        made = service.command("topics", "create", "--partitions", "4", "--replication", "1")
        assert made.returncode == 0, made.stderr
        checked = service.command("check", "--online")
        assert (checked.returncode, "✗" in checked.stdout) == (0, False), checked.stdout
        writer = Writer(secured_kafka.bootstrap, tmp_path / "produced")
        writer.write("orders", orders())
        service.serve()
        service.until(lambda: service.counter("done") >= ORDERS, "all have an invoice", SLOW_S)
        writer.write("orders", orders())  # each of them a second time: Redis remembers them
        service.until(lambda: service.counter("duplicates") == ORDERS, "none runs again", SLOW_S)
        invoices = str(service.folder / "data" / "invoices")
        eventually(lambda: DeltaTable.is_deltatable(invoices), timeout_s=SLOW_S)
        eventually(lambda: len(order_ids(invoices)) >= ORDERS, timeout_s=SLOW_S, every_s=0.5)
        writer.write("orders", [New("unreadable", b"{", b"nobody")])
        service.until(lambda: service.counter("dead") == 1, "it is a dead letter")
        for tool in TOOLS:
            used = service.command(*tool)
            assert used.returncode == 0, (tool, used.stdout, used.stderr)
        service.until(lambda: service.counter("dead") == 2, "it ran again")
        service.ends_well()
        assert len(read_all(secured_kafka.bootstrap, "orders.results")) == ORDERS
        assert sorted(order_ids(invoices)) == list(range(1, ORDERS + 1))
        traced = [line for line in service.said().splitlines() if "Traceback" in line]
        assert len(traced) == 2, traced  # of the unreadable one, each time that it ran
        assert PASSWORD not in service.said()


def order_ids(table: str) -> list[int]:
    return [int(number) for number in DeltaTable(table).to_pandas()["order_id"]]


# -- what does not ----------------------------------------------------------------------


class Misfit(NamedTuple):
    """What is wrong with a login, and what is told of it: the key, and some words."""

    change: Callable[[SecuredKafka, Path, Login], Login]
    key: str
    words: str


def with_other_password(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {**login, "sasl.password": "canary-of-nobody"}


def with_other_user(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {**login, "sasl.username": "nobody"}


def with_other_mechanism(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {**login, "sasl.mechanism": "SCRAM-SHA-256"}


def trusting_others(kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {**login, "ssl.ca.location": str(kafka.stranger.path)}


def with_others_certificate(kafka: SecuredKafka, folder: Path, login: Login) -> Login:
    other = kafka.stranger.issue(folder / "other.p12", login["ssl.keystore.password"])
    return {**login, "ssl.keystore.location": str(other)}


def without_certificate(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {name: value for name, value in login.items() if "key" not in name}


def without_tls(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    others = {name: value for name, value in login.items() if not name.startswith("ssl.")}
    return {**others, "security.protocol": "sasl_plaintext"}


def without_login(_kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    others = {name: value for name, value in login.items() if not name.startswith("sasl.")}
    return {**others, "security.protocol": "ssl"}


def to_plain_port(kafka: SecuredKafka, _folder: Path, login: Login) -> Login:
    return {**login, "bootstrap.servers": kafka.bootstrap}


def with_login_to_plain_port(kafka: SecuredKafka, folder: Path, login: Login) -> Login:
    return to_plain_port(kafka, folder, without_tls(kafka, folder, login))


PROTOCOL = "kafka.security.protocol"
MISFITS = {
    "password": Misfit(with_other_password, "kafka.sasl.password", "Authentication failed"),
    "user": Misfit(with_other_user, "kafka.sasl.password", "Authentication failed"),
    "mechanism": Misfit(with_other_mechanism, "kafka.sasl.password", "Unsupported SASL mechanism"),
    "authority": Misfit(trusting_others, "kafka.ssl.ca.location", "certificate verify failed"),
    "certificate": Misfit(with_others_certificate, "kafka.ssl.certificate.location", "alert "),
    "no certificate": Misfit(without_certificate, "kafka.ssl.certificate.location", "alert "),
    "no TLS": Misfit(without_tls, PROTOCOL, "close the connection at the first request"),
    "no login": Misfit(without_login, PROTOCOL, "close the connection without a login"),
    "no TLS there": Misfit(to_plain_port, PROTOCOL, "do not answer in TLS"),
    "no login there": Misfit(with_login_to_plain_port, PROTOCOL, "ask for no login"),
}


@pytest.fixture(scope="module", autouse=True)
def begun(
    tmp_path_factory: pytest.TempPathFactory, secured_kafka: SecuredKafka, meanwhile: Meanwhile
) -> "dict[str, Future[Done]]":
    """Each checked online, before the first test: they wait more than they compute."""
    started = {}
    for name, misfit in MISFITS.items():
        folder = tmp_path_factory.mktemp("misfit")
        login = misfit.change(secured_kafka, folder, secured_kafka.login(folder, PASSWORD))
        checked = Service(folder, secured_kafka.bootstrap, ["orders"], settings={"kafka": login})
        started[name] = meanwhile(checked.command, "check", "--online")
    return started


class Waiting(NamedTuple):
    """A service whose password the broker does not accept, started before the first test."""

    service: Service
    user: str


@pytest.fixture(scope="module", autouse=True)
def waiting(
    tmp_path_factory: pytest.TempPathFactory, secured_kafka: SecuredKafka
) -> Iterator[Waiting]:
    folder = tmp_path_factory.mktemp("waiting")
    login = secured_kafka.login(folder, PASSWORD)
    source = create_topic(secured_kafka.bootstrap, f"locked-{uuid.uuid4().hex[:8]}", 2)
    service = Service(folder, secured_kafka.bootstrap, [source], settings={"kafka": login})
    try:
        service.create_topics()
        secured_kafka.set_password(login["sasl.username"], "another")
        service.start()
        yield Waiting(service, login["sasl.username"])
    finally:
        service.end()


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit_is_one_line_with_its_key_and_69(
    begun: "dict[str, Future[Done]]", secured_kafka: SecuredKafka, name: str
) -> None:
    """In each check that asks the brokers the same; and nothing of librdkafka's own log."""
    done, misfit = begun[name].result(), MISFITS[name]
    print(done.stdout, done.stderr)  # if it fails
    lines = [line.strip() for line in done.stdout.splitlines()]
    [line] = [line for line in lines if line.startswith("kafka.")]
    assert line.startswith(f"{misfit.key}: the brokers at 127.0.0.1:"), line
    assert misfit.words in line
    assert lines[lines.index(line) + 1].startswith("→ ")
    assert lines.count("as above") == 2
    assert (done.returncode, done.stderr) == (69, "")
    assert "canary" not in done.stdout


def test_a_start_with_a_wrong_password_waits_red_until_it_is_right(
    waiting: Waiting, secured_kafka: SecuredKafka
) -> None:
    """The other side is corrected here; for the file there is `reload`."""
    service, user = waiting
    eventually(lambda: service.state() == "waiting", timeout_s=60, what="it waits")
    [reason] = eventually(lambda: service.status()["reasons"])
    assert reason.startswith("kafka.sasl.password: the brokers at ")
    assert "refuse the login (SASL authentication error: " in reason
    assert service.command("status").returncode == 1
    # Some checks later: each fails anew, and librdkafka tried a hundred times.
    eventually(lambda: service.status()["uptime_s"] > 30, timeout_s=60)
    told = [line for line in service.said().splitlines() if "refuse the login" in line]
    assert len(told) == 1, told
    assert "FAIL [rdkafka#" not in service.said()
    secured_kafka.set_password(user, PASSWORD)
    service.is_running()
    service.ends_well()
    assert PASSWORD not in service.said()


# -- Redis ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis(
    tmp_path_factory: pytest.TempPathFactory, secured_kafka: SecuredKafka, free_port: Port
) -> Iterator[SecuredRedis]:
    """One with the rights of another service, and fewer of them."""
    folder, rights = tmp_path_factory.mktemp("redis"), ["~kworker:other:*", "+get", "+evalsha"]
    authority = secured_kafka.authority
    with secured_redis(folder, free_port(), authority, PASSWORD, rights) as server:
        yield server


def found(folder: Path, address: str) -> list[Finding]:
    """By the check of a start."""
    settings = {"idempotency": {"redis": address, "key": "key"}}
    checked = Service(folder, "127.0.0.1:1", ["orders"], settings=settings)
    return check_redis(toml_file.load(checked.config))


def test_a_wrong_password_of_redis_is_told_as_that(tmp_path: Path, redis: SecuredRedis) -> None:
    [told] = found(tmp_path, redis.address("canary-of-nobody"))
    assert told.key == "idempotency.redis"
    assert told.problem.startswith("Redis refuses the login (")
    assert (told.exit_code, "canary" in str(told)) == (ExitCode.UNREACHABLE, False)


def test_a_redis_that_is_not_trusted_is_told_as_that(
    tmp_path: Path, redis: SecuredRedis, secured_kafka: SecuredKafka
) -> None:
    [told] = found(tmp_path, redis.address(PASSWORD, secured_kafka.stranger))
    assert told.problem.startswith("Redis shows a certificate that this client does not trust")
    assert "ssl_ca_certs" in told.next_step
    assert (told.exit_code, "canary" in str(told)) == (ExitCode.UNREACHABLE, False)


def test_a_user_that_may_not_see_settings_is_a_hint(tmp_path: Path, redis: SecuredRedis) -> None:
    """Redis answers, so the service can run."""
    [told] = found(tmp_path, redis.url)
    assert (told.exit_code, told.next_step) == (ExitCode.OK, "grant the user +info")


def test_a_right_that_is_missing_is_told_as_that(redis: SecuredRedis) -> None:
    """While records wait: the log and the status have this text."""
    claims = RedisClaims(redis.url, prefix="kworker:orders:", owner="a", ttl_s=60)
    with pytest.raises(ClientRejected, match=r"^idempotency\.redis: Redis refuses a command \("):
        claims.exchange(Exchange(done=["1"]))
    claims.close()
