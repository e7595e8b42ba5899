"""`start --reload`: saved code replaces the workers, unless it does not pass the checks."""

from tests.support.bare_service import Service
from tests.support.waiting import eventually


def test_saved_code_replaces_the_workers(service: Service) -> None:
    service.serve()
    before = set(service.running().values())
    (service.folder / "handlers.py").write_text("def notify(message): ...")
    service.says("files have changed: reloading")
    eventually(
        lambda: len(service.running()) == 2 and not before & set(service.running().values()),
        what="both workers are new",
    )


def test_code_that_fails_its_checks_changes_nothing(service: Service) -> None:
    service.serve()
    before = service.running()
    service.write(preflight={"problems": ["handler: cannot be imported"]})
    (service.folder / "handlers.py").write_text("def notify(message)")
    service.says("reload refused, nothing is changed: handler: cannot be imported")
    assert service.running() == before
    service.write(preflight={})
    (service.folder / "handlers.py").write_text("def notify(message): ...")
    eventually(lambda: not set(before.values()) & set(service.running().values()))
