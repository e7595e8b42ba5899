"""The manifests for Kubernetes, which no test can apply: they follow kworker's own rules."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from kworker.config import toml_file
from kworker.config.environment import Override, overrides
from kworker.config.model import Config
from kworker.config.value_types import parse_size
from kworker.console.guard import PROBES
from kworker.core.address import Address
from kworker.supervisor.limits import Limits
from tests.support.command_line import parse
from tests.support.containerfile import environment, rests, stages

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "etc" / "kubernetes"
Manifest = dict[str, Any]

MANIFESTS: list[Manifest] = list(
    chain.from_iterable(yaml.safe_load_all(file.read_text()) for file in FOLDER.iterdir())
)
ORDERS = (FOLDER / "orders.yaml").read_text()
IMAGE = stages((ROOT / "etc" / "Containerfile").read_text())["service"]
REST_BYTES = 512 << 20  # of the supervisor, the delay process, the console, isolated processes


def manifest(kind: str) -> Manifest:
    [found] = [each for each in MANIFESTS if each["kind"] == kind]
    return found


def container(kind: str) -> Manifest:
    [found] = manifest(kind)["spec"]["template"]["spec"]["containers"]
    return found


POD: Manifest = manifest("StatefulSet")["spec"]["template"]["spec"]
SERVICE = container("StatefulSet")
TOML: str = manifest("ConfigMap")["data"]["kworker.toml"]


def variables(of: Manifest) -> dict[str, str]:
    """The environment of a container; what a field or a secret gives is a word."""
    return {each["name"]: each.get("value", "word") for each in of["env"]}


def load(folder: Path, text: str) -> Config:
    """The configuration as a pod reads it; every secret that it names is there."""
    for path in re.findall(r'file = "/etc/kworker-secrets/([^"]+)"', text):
        (folder / path).write_text("0123456789abcdef0123456789abcdef")
    file = folder / "kworker.toml"
    file.write_text(text.replace("/etc/kworker-secrets", str(folder)))
    return toml_file.load(file)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(tmp_path, TOML)


# -- the configuration -----------------------------------------------------------------


def test_the_configuration_is_one_with_and_without_its_hidden_lines(tmp_path: Path) -> None:
    """The file is copied, and a key that is unknown ends a pod again and again."""
    shown = load(tmp_path, re.sub(r"^#(?=\S)", "", TOML, flags=re.MULTILINE))
    hidden = load(tmp_path, TOML)
    assert "sasl.password" in shown.kafka.common.keys() - hidden.kafka.common.keys()


def test_each_variable_of_kworker_sets_a_key() -> None:
    for of in (container(kind) for kind in ("StatefulSet", "Job", "Deployment")):
        named = variables(of)
        assert all(isinstance(found, Override) for found in overrides(named))
        assert named["KWORKER_CONFIG"] == "/etc/kworker/kworker.toml"


def test_its_settings_for_s3_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.findall(r'"spark\.jars\.\w+" = "[^"]+"', TOML)
    assert len(found) == 2
    assert [line for line in found if line not in readme] == []


def test_every_secret_that_is_read_is_made_by_a_command_or_hidden() -> None:
    read = re.findall(r'^[^#\n]*/etc/kworker-secrets/([\w-]+)"', TOML, flags=re.MULTILINE)
    made = re.findall(r"--from-literal=([\w-]+)=", ORDERS)
    assert read == made


# -- the pods --------------------------------------------------------------------------


def test_an_instance_keeps_its_name() -> None:
    """With a new name at each start, old members and open transactions would be waited for."""
    [instance] = [each for each in SERVICE["env"] if each["name"] == "KWORKER_INSTANCE"]
    assert instance["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    stateful = manifest("StatefulSet")["spec"]
    assert stateful["serviceName"] == manifest("Service")["metadata"]["name"]
    [claim] = stateful["volumeClaimTemplates"]
    [state] = [
        each for each in SERVICE["volumeMounts"] if each["name"] == claim["metadata"]["name"]
    ]
    assert Path(environment(IMAGE)["STATE_DIRECTORY"]).parent == Path(state["mountPath"])


def test_a_drain_has_the_time_that_it_may_take(config: Config) -> None:
    """After it the kubelet kills what is left, and records run again."""
    limits = Limits()
    rest_s = limits.drain_margin_s + limits.left_grace_s + limits.left_term_s
    drain_s = config.workers.drain_timeout
    assert POD["terminationGracePeriodSeconds"] > drain_s + rest_s + 10
    spark = manifest("Deployment")["spec"]["template"]["spec"]
    assert spark["terminationGracePeriodSeconds"] > limits.spark_stop_s + 10


def test_the_probes_ask_what_the_console_answers_without_a_token(config: Config) -> None:
    """On the port at which it listens, and on an address that the kubelet reaches."""
    probes = [SERVICE[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    assert [each["httpGet"]["path"] for each in probes] == ["/startupz", "/livez", "/readyz"]
    assert {each["httpGet"]["path"] for each in probes} <= set(PROBES)
    [port] = SERVICE["ports"]
    listen = Address.parse(config.console.listen)
    assert {each["httpGet"]["port"] for each in probes} == {port["name"]}
    assert port["containerPort"] == listen.port == int(rests(IMAGE, "EXPOSE")[0])
    assert listen.ip.is_unspecified
    [exposed] = manifest("Service")["spec"]["ports"]
    assert (exposed["targetPort"], exposed["port"]) == (port["name"], listen.port)


def test_a_start_may_wait_for_kafka_for_an_hour() -> None:
    """kworker waits for it; to be killed meanwhile helps nobody."""
    startup = SERVICE["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    assert "preStop" not in SERVICE.get("lifecycle", {})


def test_the_memory_is_enough_for_workers_of_full_size(config: Config) -> None:
    """Else the kernel ends what kworker would have replaced."""
    assert "processes" in config.workers.model_fields_set
    resources = SERVICE["resources"]
    limit = parse_size(f"{resources['limits']['memory']}B")
    assert limit >= config.workers.processes * config.workers.memory + REST_BYTES
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_spark_job_runs_in_its_own_pod(config: Config) -> None:
    assert config.spark
    assert config.spark.run == "elsewhere"
    remote = [config.spark.checkpoints, *(table.path for table in config.spark.tables)]
    assert all(place.startswith("s3a://") for place in remote)
    assert "KWORKER_INSTANCE" not in variables(container("Deployment"))


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "Deployment"])
def test_every_container_has_few_rights_and_the_files_it_names(kind: str) -> None:
    pod = manifest(kind)["spec"]["template"]["spec"]
    of = container(kind)
    parse(of.get("args", ["start"]))
    user = int(rests(IMAGE, "USER")[-1].partition(":")[0])
    assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
    granted = {**pod["securityContext"], **of["securityContext"]}
    assert (granted["runAsNonRoot"], granted["runAsUser"], granted["fsGroup"]) == (True, user, user)
    assert granted["readOnlyRootFilesystem"] is True
    assert granted["allowPrivilegeEscalation"] is False
    assert granted["capabilities"] == {"drop": ["ALL"]}
    claims = manifest(kind)["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in claims}
    mounts = {each["name"]: each["mountPath"] for each in of["volumeMounts"]}
    assert mounts.keys() == volumes
    assert mounts["config"] == str(Path(variables(of)["KWORKER_CONFIG"]).parent)
    assert f'"{mounts["secrets"]}/' in TOML


def test_every_selector_finds_its_pods() -> None:
    """One that finds none is accepted, and does nothing."""
    templates = [
        each["spec"]["template"] for each in MANIFESTS if "template" in each.get("spec", {})
    ]
    labels = [template["metadata"]["labels"] for template in templates]
    for each in MANIFESTS:
        if selector := each.get("spec", {}).get("selector"):
            assert selector.get("matchLabels", selector) in labels
