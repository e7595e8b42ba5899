"""A folder as object stores have it, in memory: a rename is a copy, file by file."""

from collections.abc import Callable, Iterable, Sequence

Order = Callable[[Iterable[str]], Sequence[str]]


class Killed(Exception):
    """The process that was changing the store is gone."""


class ObjectStore:
    """Objects by key. A change is one object put, copied or deleted; after `changes`, no more.

    `order` is that in which many are changed, which a store does not promise.
    """

    def __init__(self, order: Order = sorted) -> None:
        self.objects: dict[str, bytes] = {}
        self.changes: float = float("inf")
        self.order = order

    def put(self, key: str, content: bytes) -> None:
        self._count()
        self.objects[key] = content

    def delete(self, key: str) -> None:
        self._count()
        self.objects.pop(key, None)

    def below(self, prefix: str) -> Sequence[str]:
        return self.order(key for key in self.objects if key.startswith(f"{prefix}/"))

    def _count(self) -> None:
        if not self.changes:
            raise Killed
        self.changes -= 1


class StoreFolder:
    """A folder of such a store."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path

    def __str__(self) -> str:
        return self._path

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def exists(self, name: str = "") -> bool:
        path = self._key(name)
        return path in self._store.objects or bool(self._store.below(path))

    def names(self, below: str) -> Sequence[str]:
        path = self._key(below)
        return list({key[len(path) + 1 :].partition("/")[0] for key in self._store.below(path)})

    def walk(self, below: str) -> Sequence[str]:
        found = sorted(self._store.below(self._key(below)))
        return [key[len(self._path) + 1 :] for key in found]

    def read(self, name: str) -> bytes | None:
        return self._store.objects.get(self._key(name))

    def write(self, name: str, content: bytes) -> None:
        """As the Hadoop folder does it: a draft, which then takes the name."""
        draft, key = self._key(f"{name}.part"), self._key(name)
        self._store.put(draft, content)
        self._store.delete(key)
        self._store.put(key, content)
        self._store.delete(draft)

    def delete(self, name: str) -> None:
        self._store.delete(self._key(name))

    def remove(self) -> None:
        for key in self._store.below(self._path):
            self._store.delete(key)

    def beside(self, name: str) -> "StoreFolder":
        return StoreFolder(self._store, f"{self._path.rpartition('/')[0]}/{name}")

    def rename(self, name: str) -> "StoreFolder":
        other = self.beside(name)
        for key in self._store.below(self._path):
            self._store.put(other._path + key[len(self._path) :], self._store.objects[key])
            self._store.delete(key)
        return other

    def _key(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path
