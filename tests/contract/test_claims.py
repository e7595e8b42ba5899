"""What Redis is asked to do with claims and marks, the same of the real one and of its twin."""

import pytest

from kworker.clients.redis import RedisClaims, RedisTexts
from kworker.core.claim import (
    OUTCOME_BYTES_MAX,
    Answer,
    ClaimDone,
    Claimed,
    ClaimState,
    Exchange,
    HandOver,
    KeptOutcome,
    Release,
    Takeover,
)
from kworker.errors import Unreachable
from kworker.worker.idempotency.claim_thread import Claims
from tests.support.redis_and_twin import OwnServer, Store
from tests.support.waiting import eventually


def claim(claims: Claims, *wanted: tuple[str, str]) -> dict[str, ClaimState]:
    """What stands in the way of each id that was not granted; asked as (id, source)."""
    ids, sources = [id_ for id_, _ in wanted], [source for _, source in wanted]
    answer = claims.exchange(Exchange(ids=ids, sources=sources))
    return {ids[index]: state for index, state in answer.refused.items()}


def take_over(claims: Claims, source: str, over: Takeover) -> Answer:
    return claims.exchange(Exchange(ids=["e"], sources=[source], takeovers={0: over}))


def done(claims: Claims, *ids: str) -> None:
    claims.exchange(Exchange(done=ids))


def hand_over(claims: Claims, owner: str, source: str, outcome: str) -> None:
    claims.exchange(Exchange(ended=[HandOver("e", Claimed(owner, source), outcome)]))


def release(claims: Claims, owner: str, source: str, *, ended_too: bool = True) -> None:
    claims.exchange(Exchange(released=[Release("e", Claimed(owner, source), ended_too)]))


# -- claims -----------------------------------------------------------------------------


def test_the_second_claimant_hears_of_the_first(store: Store) -> None:
    """A whole run is asked for in one call, and only what is refused is told."""
    a, b = store.claims("a"), store.claims("b")
    assert claim(a, ("e", "o/0/1"), ("f", "o/0/2")) == {}
    assert claim(b, ("e", "o/1/8"), ("g", "o/1/9"), ("f", "o/1/10")) == {
        "e": Claimed("a", "o/0/1"),
        "f": Claimed("a", "o/0/2"),
    }


def test_the_same_record_of_the_same_owner_is_granted_again(store: Store) -> None:
    """An answer that was lost costs nothing; another record of the event is another matter."""
    a = store.claims("a")
    assert claim(a, ("e", "o/0/1")) == claim(a, ("e", "o/0/1")) == {}
    assert claim(a, ("e", "o/0/2")) == {"e": Claimed("a", "o/0/1")}


def test_a_record_delivered_to_another_owner_waits_for_the_first(store: Store) -> None:
    """Its handler may have outlived the revoke."""
    claim(store.claims("a"), ("e", "o/0/1"))
    assert claim(store.claims("b"), ("e", "o/0/1")) == {"e": Claimed("a", "o/0/1")}


def test_two_owners_share_ids_claimed_in_opposite_order(store: Store) -> None:
    """Each call is one step: nobody gets half of what both want, and each id has one owner."""
    a, b = store.claims("a"), store.claims("b")
    assert claim(a, ("e", "o/0/1")) == {}
    assert claim(b, ("f", "o/1/1")) == {}
    assert claim(a, ("f", "o/0/2")) == {"f": Claimed("b", "o/1/1")}
    assert claim(b, ("e", "o/1/2")) == {"e": Claimed("a", "o/0/1")}
    done(a, "e")
    done(b, "f")
    assert claim(a, ("f", "o/0/2")) == {"f": ClaimDone()}
    assert claim(b, ("e", "o/1/2")) == {"e": ClaimDone()}


def test_done_events_are_applied_before_claims(store: Store) -> None:
    """What one call says is done is found done by its own claims."""
    a = store.claims("a")
    answer = a.exchange(Exchange(done=["e"], ids=["e"], sources=["o/0/1"]))
    assert answer.refused == {0: ClaimDone()}


def test_ids_are_any_text(store: Store) -> None:
    """Whatever an event's producer made of it."""
    ids = ["", " ", "ä", "\x00", "\n", '"', "{}", "id:e", "日本"]
    a, b = store.claims("a"), store.claims("b")
    assert claim(a, *[(id_, "o/0/1") for id_ in ids]) == {}
    assert set(claim(b, *[(id_, "o/0/1") for id_ in ids])) == set(ids)


def test_a_thousand_ids_go_in_one_call(store: Store) -> None:
    """The most that a worker asks for at once, and as many marks."""
    wanted = [(f"id-{i}", f"o/0/{i}") for i in range(1_024)]
    a = store.claims("a")
    assert claim(a, *wanted) == {}
    done(a, *[id_ for id_, _ in wanted])
    assert len(claim(a, *wanted)) == 1_024


# -- done and released ------------------------------------------------------------------


def test_a_done_event_is_done_for_all_owners(store: Store) -> None:
    """For the record itself, too, when it is delivered again."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    done(a, "e")
    assert claim(a, ("e", "o/0/1")) == claim(b, ("e", "o/1/1")) == {"e": ClaimDone()}


def test_done_is_forgotten_after_its_time(store: Store) -> None:
    """`ttl` is for how long an event is known."""
    a = store.claims("a", ttl_s=0.2)
    done(a, "e")
    assert claim(a, ("e", "o/0/1")) == {"e": ClaimDone()}
    eventually(lambda: claim(a, ("e", "o/0/1")) == {}, what="the mark is gone")


def test_a_claim_does_not_end_by_time(store: Store) -> None:
    """However long its handler, or Redis's outage: only its owner or its death ends it."""
    a, b = store.claims("a", ttl_s=0.05), store.claims("b", ttl_s=0.05)
    done(b, "mark")
    claim(a, ("e", "o/0/1"))
    eventually(lambda: not claim(b, ("mark", "o/1/2")), what="a mark of the same age is gone")
    assert claim(b, ("e", "o/1/1")) == {"e": Claimed("a", "o/0/1")}


def test_a_released_event_may_be_claimed(store: Store) -> None:
    """A retry or a redriven dead letter does not read as done."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    release(a, "a", "o/0/1")
    assert claim(b, ("e", "o/1/1")) == {}


def test_an_owner_cannot_release_anothers_claim(store: Store) -> None:
    """A late release, or one said twice, finds the claim of the next."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    release(a, "a", "o/0/2")
    assert claim(b, ("e", "o/1/1")) == {"e": Claimed("a", "o/0/1")}
    release(a, "a", "o/0/1")
    claim(b, ("e", "o/1/1"))
    release(a, "a", "o/0/1")
    assert claim(a, ("e", "o/0/1")) == {"e": Claimed("b", "o/1/1")}


# -- outcomes handed on -----------------------------------------------------------------


def test_an_outcome_is_handed_on_to_all_that_ask(store: Store) -> None:
    """And stays until it is published: who takes it up may be killed, too."""
    a, b, c = store.claims("a"), store.claims("b"), store.claims("c")
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", "the\noutcome")
    assert claim(c, ("e", "o/1/1")) == {"e": KeptOutcome("o/0/1", "the\noutcome")}
    for name, claims in (("b", b), ("b", b), ("c", c), ("b", b)):
        assert claim(claims, ("e", "o/0/1")) == {"e": KeptOutcome("o/0/1", "the\noutcome", name)}
    assert claim(c, ("e", "o/1/1")) == {"e": KeptOutcome("o/0/1", "the\noutcome", "b")}
    done(b, "e")
    assert claim(c, ("e", "o/1/1")) == {"e": ClaimDone()}


def test_an_outcome_of_64_kib_is_handed_on(store: Store) -> None:
    """The largest, as it is packed."""
    outcome = "x" * (OUTCOME_BYTES_MAX * 4 // 3 + 100)
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", outcome)
    assert claim(b, ("e", "o/0/1")) == {"e": KeptOutcome("o/0/1", outcome, "b")}
    hand_over(b, "b", "o/0/1", outcome)
    assert claim(a, ("e", "o/1/1")) == {"e": KeptOutcome("o/0/1", outcome)}


def test_an_outcome_is_too_late_after_a_takeover(store: Store) -> None:
    """Whoever has the claim now runs, and its own outcome counts."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    take_over(b, "o/0/1", Takeover(Claimed("a", "o/0/1"), None, gone=True))
    hand_over(a, "a", "o/0/1", "late")
    assert claim(a, ("e", "o/0/1")) == {"e": Claimed("b", "o/0/1")}


def test_an_outcome_that_became_a_dead_letter_is_released(store: Store) -> None:
    """Who publishes it may find it unpublishable; redriven, the record must run."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", "x")
    assert claim(b, ("e", "o/0/1")) == {"e": KeptOutcome("o/0/1", "x", "b")}
    release(b, "b", "o/1/1")
    release(a, "a", "o/0/1")
    assert claim(a, ("e", "o/2/2")) == {"e": KeptOutcome("o/0/1", "x", "b")}
    release(b, "b", "o/0/1", ended_too=False)
    assert claim(a, ("e", "o/2/2")) == {"e": KeptOutcome("o/0/1", "x")}
    assert claim(b, ("e", "o/0/1")) == {"e": KeptOutcome("o/0/1", "x", "b")}
    release(b, "b", "o/0/1")
    assert claim(b, ("e", "o/0/1")) == {}


def test_a_kept_outcome_waits_for_its_own_record(store: Store) -> None:
    """Then another record of the event takes its place, and its own waits for that one."""
    a, b, c = store.claims("a"), store.claims("b", own_record_s=0.3), store.claims("c")
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", "x\ny")
    kept = KeptOutcome("o/0/1", "x\ny")
    assert claim(b, ("e", "o/1/1")) == {"e": kept}
    eventually(lambda: claim(b, ("e", "o/1/1")) != {"e": kept}, what="it has waited")
    taken = KeptOutcome("o/1/1", "x\ny", "b")
    assert claim(b, ("e", "o/1/1")) == {"e": taken}
    assert claim(c, ("e", "o/0/1")) == {"e": taken}


def test_an_outcome_taken_up_is_free_when_its_owner_is_dead(store: Store) -> None:
    """Its own record may come again, so that it is waited for anew."""
    a, b, c = store.claims("a"), store.claims("b"), store.claims("c", own_record_s=0.0)
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", "x")
    taken = KeptOutcome("o/0/1", "x", "b")
    assert claim(b, ("e", "o/0/1")) == {"e": taken}
    assert claim(c, ("e", "o/1/1")) == {"e": taken}
    assert take_over(c, "o/1/1", Takeover(taken, -1)).refused == {0: taken}
    assert take_over(c, "o/1/1", Takeover(taken, None, gone=True)).refused == {
        0: KeptOutcome("o/0/1", "x")
    }
    assert claim(c, ("e", "o/1/1")) == {"e": KeptOutcome("o/1/1", "x", "c")}


# -- the dead ---------------------------------------------------------------------------


def test_each_call_is_a_beat(store: Store) -> None:
    """By which others see that an owner lives; of one that never called nothing is known."""
    a, b = store.claims("a"), store.claims("b")

    def beats() -> list[int | None]:
        return list(b.exchange(Exchange(watched=["a", "nobody"])).beats.values())

    assert beats() == [None, None]
    a.exchange(Exchange())
    first, _ = beats()
    assert beats() == [first, None]
    a.exchange(Exchange())
    second, _ = beats()
    assert first is not None
    assert second is not None
    assert second > first


def test_a_dead_owners_claim_is_taken_over(store: Store) -> None:
    """At once; and only the claim that was seen."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    other = Takeover(Claimed("a", "o/0/9"), None, gone=True)
    assert take_over(b, "o/1/1", other).refused == {0: Claimed("a", "o/0/1")}
    assert take_over(b, "o/1/1", Takeover(Claimed("a", "o/0/1"), None, gone=True)).refused == {}
    assert claim(a, ("e", "o/0/1")) == {"e": Claimed("b", "o/1/1")}


def test_a_silent_owners_claim_is_taken_over_unless_it_speaks(store: Store) -> None:
    """Between the look and the grip it may have come back."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("e", "o/0/1"))
    held = Claimed("a", "o/0/1")
    seen = b.exchange(Exchange(watched=["a"])).beats["a"]
    a.exchange(Exchange())
    assert take_over(b, "o/1/1", Takeover(held, seen)).refused == {0: held}
    seen = b.exchange(Exchange(watched=["a"])).beats["a"]
    assert take_over(b, "o/1/1", Takeover(held, seen)).refused == {}


def test_one_of_two_takeovers_wins(store: Store) -> None:
    """Both have seen the same death."""
    a, b, c = store.claims("a"), store.claims("b"), store.claims("c")
    claim(a, ("e", "o/0/1"))
    over = Takeover(Claimed("a", "o/0/1"), None, gone=True)
    assert take_over(b, "o/0/1", over).refused == {}
    assert take_over(c, "o/0/1", over).refused == {0: Claimed("b", "o/0/1")}


def test_done_and_ended_are_never_taken_over(store: Store) -> None:
    """Their owner's death changes nothing about them."""
    a, b = store.claims("a"), store.claims("b")
    over = Takeover(Claimed("a", "o/0/1"), None, gone=True)
    claim(a, ("e", "o/0/1"))
    hand_over(a, "a", "o/0/1", "x")
    assert take_over(b, "o/0/1", over).refused == {0: KeptOutcome("o/0/1", "x", "b")}
    done(a, "e")
    assert take_over(b, "o/0/1", over).refused == {0: ClaimDone()}


# -- trouble ----------------------------------------------------------------------------


def test_every_call_may_be_repeated(store: Store) -> None:
    """After a time-out nobody knows whether it was done; said again, it changes nothing."""
    a, b = store.claims("a"), store.claims("b")
    claim(a, ("gone", "o/9/9"), ("e", "o/0/1"), ("f", "o/0/2"))
    call = Exchange(
        done=["d"],
        ended=[HandOver("e", Claimed("a", "o/0/1"), "x")],
        released=[Release("f", Claimed("a", "o/0/2"))],
        ids=["gone", "h"],
        sources=["o/1/1", "o/1/2"],
        takeovers={0: Takeover(Claimed("a", "o/9/9"), None, gone=True)},
    )
    for _ in range(3):
        assert b.exchange(call).refused == {}
    wanted = [(id_, "o/2/1") for id_ in ("d", "e", "f", "gone", "h")]
    assert claim(a, *wanted) == {
        "d": ClaimDone(),
        "e": KeptOutcome("o/0/1", "x"),
        "gone": Claimed("b", "o/1/1"),
        "h": Claimed("b", "o/1/2"),
    }


def test_a_call_that_comes_after_its_repetition_changes_nothing(store: Store) -> None:
    """It lay in a stopped server's socket; what it claims has been released since."""
    a, late = store.claims("a"), store.claims("a")
    for _ in range(3):
        a.exchange(Exchange())
    with pytest.raises(Unreachable, match="LATE"):
        claim(late, ("e", "o/0/1"))
    assert claim(store.claims("b"), ("e", "o/1/1")) == {}


@pytest.mark.parametrize("kind", ["away", "readonly", "full"])
def test_a_redis_refusal_is_reported_and_passes(store: Store, kind: str) -> None:
    """Stopped, a replica, out of memory: all the same to who waits for it."""
    a = store.claims("a")
    claim(a, ("e", "o/0/1"))
    with store.trouble(kind):
        for _ in range(2):
            with pytest.raises(Unreachable):
                a.exchange(Exchange(done=["e"], ids=["f"], sources=["o/0/2"]))
    eventually(lambda: answers(a), what="Redis answers again")
    done(a, "e")
    assert claim(store.claims("b"), ("e", "o/1/1")) == {"e": ClaimDone()}


def answers(claims: Claims) -> bool:
    try:
        claims.exchange(Exchange())
    except Unreachable:
        return False
    return True


def test_a_flushed_redis_is_like_a_new_one(store: Store) -> None:
    """The scripts are gone as well as the data."""
    a = store.claims("a")
    done(a, "e")
    store.flush()
    assert claim(a, ("e", "o/0/1")) == {}


def test_a_redis_that_is_not_there_is_said_without_its_password() -> None:
    """A refused connection is the commonest of troubles."""
    url = "redis://:s3cret@127.0.0.1:1/0"
    with pytest.raises(Unreachable) as told:
        RedisClaims(url, prefix="p:", owner="a", ttl_s=1).exchange(Exchange())
    assert "s3cret" not in str(told.value)


def test_a_refusal_ends_the_connection(own_redis: OwnServer) -> None:
    """A replica stays one for who stays connected; the name may lead to the new master."""
    url = f"{own_redis.url}?client_name=refused"
    claims = RedisClaims(url, prefix="p:", owner="a", ttl_s=1)

    def connected() -> bool:
        return "refused" in [client["name"] for client in own_redis.admin.client_list()]

    claims.exchange(Exchange())
    assert connected()
    with own_redis.readonly(), pytest.raises(Unreachable):
        claims.exchange(Exchange())
    eventually(lambda: not connected(), what="it is closed")


def test_a_foreign_redis_value_is_reported(own_redis: OwnServer) -> None:
    """Another's data under our names is not taken for anything."""
    claims = RedisClaims(own_redis.url, prefix="odd:", owner="a", ttl_s=1)
    own_redis.admin.set("odd:e", "1")
    with pytest.raises(Unreachable, match="for an event, which kworker never writes"):
        claim(claims, ("e", "o/0/1"))
    claims.close()


@pytest.mark.parametrize("prefix", ["kworker:orders:", "k", "kworker-own:", "o", "own-"])
def test_only_event_keys_begin_with_the_prefix(own_redis: OwnServer, prefix: str) -> None:
    """People look an event up by it; and an id may be any text, also what others begin with."""
    own_redis.admin.flushall()
    claims = RedisClaims(own_redis.url, prefix=prefix, owner="a", ttl_s=1)
    suspects = RedisTexts(own_redis.url, kind="suspects", prefix=prefix)
    suspects.put({"o/0/1": "[]"})
    claims.exchange(Exchange())  # a beat
    others = [key.decode() for key in own_redis.admin.scan_iter()]
    assert len(others) == 2
    assert not [key for key in others if key.startswith(prefix)]
    claim(claims, ("e", "o/0/1"))
    assert own_redis.admin.get(f"{prefix}e") == b"ca o/0/1"
    claims.close()
    suspects.close()


# -- suspects ---------------------------------------------------------------------------


def test_suspects_are_known_to_all(store: Store) -> None:
    """Put twice is put once; what is removed is known to nobody."""
    here, there = store.texts("suspects"), store.texts("suspects")
    assert there.get() == {}
    here.put({"o/0/1": "[]", "o/0/2": "[]"})
    here.put({"o/0/1": '["SIGSEGV"]'})
    here.put({})
    assert there.get() == {"o/0/1": '["SIGSEGV"]', "o/0/2": "[]"}
    there.remove(["o/0/1", "o/9/9"])
    there.remove([])
    assert here.get() == {"o/0/2": "[]"}
