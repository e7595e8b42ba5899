"""The units: what is printed is what is shipped, systemd accepts it, and its sandbox is close."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kworker.cli.main import run
from kworker.cli.units import UnitValues, service_unit, spark_unit, target_unit
from kworker.errors import ExitCode
from kworker.supervisor.limits import Limits
from tests.support.bare_service import ROOT
from tests.support.units import analyze, settings, write_config, write_instance

PRINTED = {
    "kworker@.service": service_unit(UnitValues(Path("/usr/local/bin/kworker"))),
    "kworker-spark@.service": spark_unit(UnitValues(Path("/usr/local/bin/kworker"))),
    "kworker.target": target_unit(),
}
RUN = [name for name in PRINTED if name.endswith(".service")]
EXPOSURE_MAX = 25  # tenths of systemd's own measure, which calls more than 50 medium, and 90 unsafe

Print = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Print:
    """Prints a unit, as the command does."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)

    def print_unit(*arguments: object) -> str:
        assert run(["systemd", "print", *map(str, arguments)]) == ExitCode.OK
        return capsys.readouterr().out

    return print_unit


def accepted(folder: Path, *files: Path) -> None:
    verdict = analyze("verify", "--recursive-errors=no", *files, folder=folder)
    assert verdict.returncode == 0, verdict.stderr
    assert "kworker" not in verdict.stderr


# -- templates ------------------------------------------------------------------------


def test_the_shipped_units_are_those_that_are_printed() -> None:
    """Two texts of one unit drift apart."""
    shipped = {file.name: file.read_text() for file in (ROOT / "systemd").iterdir()}
    assert shipped == PRINTED


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Together, since they name each other. A template alone cannot be verified."""
    files = [write_instance(tmp_path, name, text) for name, text in PRINTED.items()]
    accepted(tmp_path, *files)


@pytest.mark.parametrize("name", RUN)
def test_systemd_finds_little_that_the_sandbox_leaves_open(name: str, tmp_path: Path) -> None:
    file = write_instance(tmp_path, name, PRINTED[name])
    verdict = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", file)
    assert verdict.returncode == 0, verdict.stdout


def test_the_command_prints_each_unit_for_this_installation(printed: Print) -> None:
    """Its own command and a user of one's choice, and else the template."""
    for name, shipped in PRINTED.items():
        text = printed(name, "--kworker", "/opt/k/bin/kworker", "--user", "svc")
        for line in set(text.splitlines()) - set(shipped.splitlines()):
            assert line.partition("=")[0] in ("ExecStart", "User", "ProtectHome"), line
        if name in RUN:
            assert settings(text)["ExecStart"][0].startswith("/opt/k/bin/kworker ")
            assert settings(text)["User"] == ["svc"]
    assert printed("--kworker", "/opt/k/bin/kworker", "--user", "svc") == printed(
        "kworker@.service", "--kworker", "/opt/k/bin/kworker", "--user", "svc"
    )


def test_an_interpreter_in_a_home_is_not_hidden(printed: Print) -> None:
    """A unit that hides its own command never starts."""
    text = printed("--kworker", "/home/ann/.venv/bin/kworker")
    assert settings(text)["ProtectHome"] == ["read-only"]
    text = service_unit(UnitValues(Path("/opt/k/bin/kworker"), reads=(Path("/opt/python"),)))
    assert settings(text)["ProtectHome"] == ["yes"]


def test_the_java_of_the_environment_is_that_of_the_unit(
    printed: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts services with a PATH of its own."""
    monkeypatch.setenv("JAVA_HOME", "/home/ann/jdk 21")
    found = settings(printed("kworker-spark@.service"))
    assert found["Environment"][-1] == '"JAVA_HOME=/home/ann/jdk 21"'
    assert found["ProtectHome"] == ["read-only"]


# -- rules that follow kworker's own ---------------------------------------------------


def test_the_stop_of_the_unit_outlasts_that_of_the_service() -> None:
    """Else systemd kills a drain that would have ended in time."""
    limits = Limits()
    rest_s = limits.drain_margin_s + limits.left_grace_s + limits.left_term_s + limits.spark_stop_s
    for drain_s in (0.0, 30.0, 600.5):
        text = service_unit(UnitValues(Path("/kworker"), drain_s=drain_s))
        assert int(settings(text)["TimeoutStopSec"][0]) > drain_s + rest_s + 10


def test_the_units_follow_the_exit_codes() -> None:
    """No restart helps where a person must act, and nothing failed where nothing is lost."""
    no_use = {ExitCode.USAGE, ExitCode.CONFIG}
    expected = {RUN[0]: {*no_use, ExitCode.ALREADY_RUNNING}, RUN[1]: no_use}
    for name, codes in expected.items():
        told = settings(PRINTED[name])["RestartPreventExitStatus"][0]
        assert set(map(int, told.split())) == codes
    told = settings(PRINTED[RUN[0]])["SuccessExitStatus"][0]
    assert int(told) == ExitCode.DRAIN_TIMED_OUT


# -- the unit of one configuration -----------------------------------------------------


def test_the_unit_of_a_configuration_fits_it(printed: Print, tmp_path: Path) -> None:
    """Its drain and its tables; the store of one table is not on this disk."""
    file = write_config(tmp_path / "orders")
    text = printed("--config", file)
    found = settings(text)
    assert found["TimeoutStopSec"] == ["180"]
    assert found["Environment"][0] == f"KWORKER_CONFIG={file}"
    assert found["StateDirectory"] == ["kworker/orders"]
    assert found["ReadWritePaths"] == ["/srv/spark", f"{file.parent}/tables"]
    assert "%i" not in text
    assert f"# Runs {file} as kworker@orders" in text
    accepted(tmp_path, write_instance(tmp_path, "kworker@.service", text))


def test_where_spark_runs_elsewhere_its_unit_alone_writes_tables(
    printed: Print, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWORKER_SPARK__RUN", "elsewhere")
    file = write_config(tmp_path / "orders")
    assert "ReadWritePaths" not in settings(printed("--config", file))
    found = settings(printed("kworker-spark@.service", "--config", file))
    assert found["ReadWritePaths"] == ["/srv/spark", f"{file.parent}/tables"]


def test_a_state_folder_of_ones_own_can_be_written_to(printed: Print, tmp_path: Path) -> None:
    for state_dir, expected in (("/srv/state", ["/srv/state"]), ("/var/lib/kworker/orders", [])):
        file = write_config(tmp_path, f'state_dir = "{state_dir}"', spark="")
        assert settings(printed("--config", file))["ReadWritePaths"] == expected


def test_paths_with_blanks_and_percents_stay_whole(printed: Print, tmp_path: Path) -> None:
    """systemd splits lines at blanks, and replaces what follows a percent sign."""
    file = write_config(tmp_path / 'a "b" %i c')
    text = printed("--config", file, "--kworker", tmp_path / "bin %i" / "kworker")
    (tmp_path / "bin %i").mkdir()
    write_instance(tmp_path / "bin %i", "kworker@.service", "")
    folder = tmp_path / "units"
    folder.mkdir()
    (folder / "kworker@orders.service").write_text(text)
    accepted(folder, folder / "kworker@orders.service")
    assert r'a \"b\" %%i c/kworker.toml"' in settings(text)["Environment"][0]


def test_a_spark_unit_without_spark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, spark="")
    code = run(["systemd", "print", "kworker-spark@.service", "--config", str(file)])
    assert code == ExitCode.CONFIG
    assert "kworker: spark: missing; add a section [spark]" in capsys.readouterr().err
