"""The manual of deployments: what this machine can try of it is true."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kworker.cli.main import run
from kworker.cli.units import UnitValues, service_unit
from kworker.config import toml_file
from kworker.errors import ExitCode
from tests.support.command_line import parse
from tests.support.containerfile import rests, stages
from tests.support.units import analyze, settings, write_instance

ROOT = Path(__file__).parents[3]
MANUAL = (ROOT / "docs" / "deploy.md").read_text()
CONTAINERFILE = stages((ROOT / "etc" / "Containerfile").read_text())
UNITS = re.compile(r"/opt/kworker/bin/kworker (systemd print [^>]*)> /etc/systemd/system/(\S+)")


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", MANUAL, re.DOTALL)
    assert found
    return found


COMMANDS = [
    words
    for block in blocks("sh")
    for line in block.splitlines()
    if (words := shlex.split(line, comments=True))
]


def of(program: str) -> list[list[str]]:
    """The arguments of each command that runs a program."""
    return [words[1:] for words in COMMANDS if words[0] == program]


def test_every_verb_and_option_of_kworker_exists() -> None:
    """Also where another program runs the command: sudo, podman, kubectl."""
    found = []
    for words in COMMANDS:
        at = [n for n, word in enumerate(words) if Path(word).name == "kworker"]
        runs = Path(words[0]).name == "kworker" or "exec" in words or words[0] == "sudo"
        if runs and at:
            arguments = words[at[-1] + 1 :]
            found.append(arguments[: arguments.index(">")] if ">" in arguments else arguments)
    assert len(found) > 8
    for arguments in found:
        parse(arguments)


def test_the_units_are_written_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each under the name by which systemd starts it."""
    printed = UNITS.findall(MANUAL)
    assert len(printed) == 4
    config = tmp_path / "orders.toml"
    config.write_text(service()[0])
    for arguments, name in printed:
        words = shlex.split(arguments.replace("/etc/kworker", str(tmp_path)))
        assert run([*words, "--kworker", "/usr/local/bin/kworker"]) == ExitCode.OK
        text = capsys.readouterr().out
        assert text.count("[Unit]") == 1
        file = write_instance(tmp_path, name, text)
        verdict = analyze("verify", "--recursive-errors=no", file, folder=tmp_path)
        assert (verdict.returncode, verdict.stderr) == (0, "")
        started = {unit for words in of("systemctl") for unit in words if "@" in unit}
        assert file.name.removesuffix(".service") in started or name == "kworker.target"


def service() -> list[str]:
    """The blocks that are whole configurations."""
    return [block for block in blocks("toml") if block.startswith("name")]


def test_its_configurations_are_read(tmp_path: Path) -> None:
    [whole] = service()
    fragments = [block for block in blocks("toml") if block not in service()]
    assert len(fragments) == 2
    for fragment in fragments:
        secret = tomllib.loads(fragment)["kafka"]["sasl.password"]["file"]
        (tmp_path / Path(secret).name).write_text("word\n")
        file = tmp_path / "orders.toml"
        text = fragment.replace(secret, Path(secret).name)
        file.write_text(whole + text.removeprefix("[kafka]\n"))
        config = toml_file.load(file)
        assert config.kafka.common["sasl.password"] == "word"
        assert str(config.state_dir) == "/var/lib/kworker/orders"


def test_its_drop_ins_are_settings_of_systemd(tmp_path: Path) -> None:
    """A name that systemd does not know is a warning in its log, and no more."""
    for dropped in blocks("ini"):
        text = service_unit(UnitValues(Path("/usr/local/bin/kworker")))
        file = write_instance(tmp_path, "kworker@.service", text)
        folder = tmp_path / f"{file.name}.d"
        folder.mkdir(exist_ok=True)
        (folder / "override.conf").write_text(dropped)
        verdict = analyze("verify", "--recursive-errors=no", file, folder=tmp_path)
        assert (verdict.returncode, verdict.stderr) == (0, "")


def test_a_credential_is_read_where_systemd_puts_it() -> None:
    [line] = [found for block in blocks("ini") for found in settings(block)["LoadCredential"]]
    name = line.partition(":")[0]
    assert f'"/run/credentials/kworker@orders.service/{name}"' in MANUAL


def test_the_user_and_the_home_are_those_of_the_unit() -> None:
    """The home is what CacheDirectory makes: Spark's packages for S3 go there."""
    [words] = of("useradd")
    unit = settings(service_unit(UnitValues(Path("/kworker"))))
    assert words[-1] == unit["User"][0]
    assert words[words.index("--home-dir") + 1] == f"/var/cache/{unit['CacheDirectory'][0]}"


def test_images_are_built_from_what_is_there() -> None:
    first, second = (words for words in of("podman") if words[0] == "build")
    assert first[first.index("--target") + 1] in CONTAINERFILE
    assert (ROOT / first[first.index("-f") + 1]).is_file()
    [theirs] = blocks("dockerfile")
    [base] = rests(stages(theirs)[""], "FROM")
    assert base == first[first.index("-t") + 1]
    *_, target = rests(stages(theirs)[""], "COPY")[0].split()
    assert target.rstrip("/") == rests(CONTAINERFILE["service"], "WORKDIR")[0]
    [ran] = [words for words in of("podman") if words[0] == "run"]
    assert ran[-1] == second[second.index("-t") + 1]
    assert int(ran[ran.index("--stop-timeout") + 1]) >= 90


def test_the_secrets_of_the_manifests_are_made() -> None:
    """By the commands, with every key that a manifest reads."""
    made: dict[str, set[str]] = {}
    for words in of("kubectl"):
        if words[:3] == ["create", "secret", "generic"]:
            keys = {re.split("[=]", word)[1] for word in words if "--from-literal" in word}
            made[words[3]] = keys
    manifests: list[dict[str, Any]] = []
    for file in (ROOT / "etc" / "kubernetes").iterdir():
        assert f"kubectl apply -f {file.relative_to(ROOT)}" in MANUAL
        manifests += yaml.safe_load_all(file.read_text())
    read = re.findall(r"'secretKeyRef': \{'name': '([\w-]+)', 'key': '([\w-]+)'\}", str(manifests))
    read += [("orders", "console-token")]
    assert {(name, key) for name, keys in made.items() for key in keys} == set(read)
