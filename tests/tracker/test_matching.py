"""The indexes of offers and requests find the same as a plain search."""

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker.entities import SlotOffer, WaitingRequest
from rpcsys.tracker.labels import facts_of, wants_of
from rpcsys.tracker.matching import MAX_BESIDE_OF_ADDRESS, OfferIndex, Subqueues
from rpcsys.tracker.shares import Shares

KEYS = st.sampled_from("ab")
LABELS = st.dictionaries(st.sampled_from(["site", "rev"]), st.sampled_from(["1", "2"]))
WANTS = st.builds(wants_of, KEYS, LABELS)
FACTS = st.builds(lambda key, labels: facts_of(key, "board", labels, ()), KEYS, LABELS)
USERS = st.sampled_from(["ann", "bob", "cy"])


@given(st.lists(st.tuples(FACTS, st.booleans())), WANTS)
def test_the_first_offer_that_fits_is_found(offered, wants):
    index = OfferIndex()
    offers = [SlotOffer(number, "a", f"a:{number}", "h", 1, facts) for number, (facts, _) in enumerate(offered)]
    for offer in offers:
        index.add(offer)
    left = []
    for offer, (_, stays) in zip(offers, offered, strict=True):
        if stays:
            left.append(offer)
        else:
            index.remove(offer)
    found = index.find(wants)
    fitting = [offer for offer in left if wants.fit(offer.facts)]
    assert found is (fitting[0] if fitting else None)
    assert index.count("a") == sum(("key", "a") in offer.facts.pairs for offer in left)
    assert [offer.free for offer in offers] == [stays for _, stays in offered]


@given(st.lists(st.tuples(WANTS, USERS, st.integers(0, 2), st.booleans()), max_size=12), FACTS, st.integers(0, 2))
def test_the_next_request_is_the_best_that_fits(asked, facts, running):
    shares = Shares(0.0)
    subqueues, empty = Subqueues(shares), Subqueues(shares)
    for _ in range(running):
        shares.begin(0.0, "ann")
    waiting = []
    for arrival, (wants, user, priority, stays) in enumerate(asked):
        request = WaitingRequest(arrival, 1, None, wants, priority, user, 0.0)
        shares.waits(0.0, user)
        subqueues.add(request)
        waiting.append((request, stays))
    for request, stays in waiting:
        if not stays:
            subqueues.remove(request)
    left = [request for request, stays in waiting if stays]
    x = shares.clock(100.0)
    found = min((subqueue.best(x) for subqueue in subqueues.index.fitting(facts)), default=None)
    fitting = [request for request in left if request.wants.fit(facts)]
    if not fitting:
        assert found is None
    else:
        spent = {user: shares.spent(100.0, user) for user in ("ann", "bob", "cy")}
        best = min(fitting, key=lambda request: (-request.priority, spent[request.user], request.arrival))
        assert found is not None
        assert found[2] == best.arrival
    for request in left:
        subqueues.remove(request)
    assert subqueues == empty
    assert not subqueues.of_key("a")


def test_sets_of_labels_of_one_address_are_bounded():
    shares = Shares(0.0)
    subqueues = Subqueues(shares)
    for number in range(MAX_BESIDE_OF_ADDRESS):
        wants = wants_of("a", {"cores": f">={number}"})
        assert not subqueues.full("10.0.0.5", wants)
        subqueues.add(WaitingRequest(number, 1, None, wants, 1, "ann", 0.0, address="10.0.0.5"))
    another = wants_of("a", {"cores": ">=1000"})
    assert "10.0.0.5" in subqueues.full("10.0.0.5", another)
    assert not subqueues.full("10.0.0.6", another)
    assert not subqueues.full("10.0.0.5", wants_of("a", {}))
