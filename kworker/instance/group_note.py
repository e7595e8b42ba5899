"""A note in `state_dir` of the partitions in which the group has had committed positions."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kworker.core.message import PartitionId
from kworker.core.offset_map import TopicIdentity


class GroupNote:
    """A file that notes in which partitions the group has had committed positions.

    Each start of the service updates the file after its checks. With it, kworker distinguishes a
    lost position from one that never existed. The file also notes the ids of the topics. If a topic
    was deleted and created again, the id differs, and positions in the deleted topic do not count.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "group.json"

    @property
    def exists(self) -> bool:
        """True if the group has run before, so that there is a note."""
        return self.path.exists()

    def positions(self) -> dict[PartitionId, str]:
        """Returns the partitions in which the group had a position, with their topics' ids."""
        try:
            topics = json.loads(self.path.read_text()).get("sources", {})
        except (FileNotFoundError, ValueError):
            return {}
        return {
            (name, int(number)): str(topic["id"])
            for name, topic in topics.items()
            for number in topic["partitions"]
        }

    def write(
        self,
        group: str,
        cluster: str,
        held: Iterable[PartitionId],
        ids: Mapping[str, TopicIdentity],
    ) -> None:
        """Adds the partitions `held`, in which the group has positions now, to the note.

        Removes partitions whose topic was recreated since they were noted.
        """
        kept = {at: id_ for at, id_ in self.positions().items() if _is_same(id_, ids.get(at[0]))}
        named = {name: id_ for (name, _), id_ in kept.items()}
        named |= {name: identity.topic_id for name, identity in ids.items()}
        known = sorted({*kept, *held})
        topics: dict[str, dict[str, Any]] = {}
        for name, number in known:
            topic = topics.setdefault(name, {"id": named.get(name, ""), "partitions": []})
            topic["partitions"].append(number)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps({"group": group, "cluster": cluster, "sources": topics}))
        draft.replace(self.path)


def lost_partitions(
    noted: Mapping[PartitionId, str],
    missing: Collection[PartitionId],
    ids: Mapping[str, TopicIdentity],
) -> list[PartitionId]:
    """Returns the partitions in which the group has lost its position.

    The group had positions in the partitions `noted`. Now it has no positions in the partitions
    `missing`. A partition that is in both is returned, unless its topic was deleted and created
    again.
    """
    return sorted(at for at in missing if at in noted and _is_same(noted[at], ids.get(at[0])))


def _is_same(topic_id: str, identity: TopicIdentity | None) -> bool:
    """Returns True unless both ids are known and differ.

    If an id is unknown, the topic counts as the same, so that its lost positions are reported.
    """
    return not topic_id or identity is None or identity.topic_id == topic_id
