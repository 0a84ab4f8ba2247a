"""Strategies for every message of the tracker connection."""

from hypothesis import strategies as st

from rpcsys.wire import control, outcomes, tracker

texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=30)
keys = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters=",[]"), min_size=1, max_size=30
)
ids = st.integers(0, 2**53)
counts = st.integers(1, 4096)
ports = st.integers(0, 65535)
spans = st.floats(0, 1e9) | st.integers(0, 10**9)


def maybe(strategy):
    return st.none() | strategy


labels = st.dictionaries(texts, texts, max_size=3)
plain = st.recursive(st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(), st.lists, max_leaves=5)
numbers = st.floats(-1e9, 1e9) | st.integers(-(2**53), 2**53)
hellos = st.builds(control.Hello, texts, st.lists(texts, max_size=3).map(tuple), maybe(texts))
modules = st.builds(control.DeployedModule, texts, texts, st.booleans(), counts, ids, ids, ids)
pins, secrets = (st.text("0123456789abcdef", min_size=size, max_size=size) for size in (64, 32))
uses = (st.sampled_from(("serve", "deploy")), st.lists(texts, max_size=3).map(tuple), texts)
running = st.builds(control.Running, texts, ids, spans)
cleaned = st.dictionaries(texts, ids | st.lists(texts, max_size=3), max_size=3)
readings = st.dictionaries(texts, plain, max_size=3)
answer_fields = st.dictionaries(
    texts.filter(lambda t: t not in ("id", "ok", "op", "error", "message", "event")), plain, max_size=3
)

VIAS = st.builds(control.Via, st.tuples(texts, ports), maybe(st.tuples(maybe(texts), ports)))
TO_TRACKER = st.one_of(
    VIAS,
    st.builds(tracker.Ping, maybe(hellos)),
    st.builds(tracker.Stop, texts),
    st.builds(tracker.Put, keys, ports, keys, maybe(texts)),
    st.builds(tracker.TvmRequest, keys, texts, numbers),
    st.builds(tracker.UpdateInfo, texts, maybe(texts), ports),
    st.builds(tracker.TvmSummary),
    st.builds(tracker.GetPending),
    st.builds(
        control.Request,
        ids,
        maybe(keys),
        numbers,
        maybe(spans),
        maybe(spans),
        st.booleans(),
        labels,
        counts,
        maybe(texts),
    ),
    st.builds(control.Cancel, ids, ids),
    st.builds(control.Renew, ids, texts, maybe(spans)),
    st.builds(control.Release, ids, texts, texts),
    st.builds(control.Resolve, ids, texts, st.booleans()),
    st.builds(control.AskAdmission, ids, st.just("deploy"), texts),
    st.builds(control.Summary, ids),
    st.builds(
        control.History, ids, maybe(keys), maybe(texts), maybe(texts), maybe(spans), maybe(spans), counts, maybe(ids)
    ),
    st.builds(control.Usage, ids, maybe(keys), maybe(texts), maybe(spans)),
    st.builds(control.Why, ids, maybe(ids), maybe(keys)),
    st.builds(control.Drain, ids, maybe(texts)),
    st.builds(control.Enable, ids, texts),
    st.builds(control.EndLease, ids, texts, texts),
    st.builds(
        control.Register,
        ids,
        keys,
        texts,
        counts,
        maybe(ports),
        maybe(texts),
        labels,
        st.lists(texts, max_size=3).map(tuple),
        st.lists(texts, max_size=3).map(tuple),
        st.lists(running, max_size=3).map(tuple),
        texts,
        texts,
        pins | st.just(""),
        st.lists(st.builds(control.ModuleUse, *uses), max_size=3).map(tuple),
    ),
    st.builds(control.LeaseStarted, ids, texts, ids, texts),
    st.builds(control.LeaseEnded, ids, texts, ids, st.sampled_from(outcomes.OUTCOMES), cleaned, texts, texts),
    st.builds(control.Health, ids, texts, readings),
    st.builds(control.CanaryRun, ids, texts, spans, st.booleans(), spans, maybe(spans), texts),
    st.builds(control.Deployed, ids, st.lists(modules, max_size=3).map(tuple), texts),
    st.builds(control.Answer, ids, st.just(True), fields=answer_fields),
    st.builds(control.Answer, ids, st.just(False), texts, st.text()),
)

LEASES = st.builds(control.Lease, texts, ids, keys, texts, maybe(ports), keys, maybe(texts), maybe(spans))
FROM_TRACKER = st.one_of(
    st.builds(control.Taken, ids, texts, ids, keys, texts, texts, maybe(spans)),
    st.builds(control.Limit, ids, texts, ids, maybe(spans)),
    st.builds(control.End, ids, texts, ids, texts),
    st.builds(control.Drain, ids, maybe(texts)),
    st.builds(control.Admit, ids, secrets, *uses, spans),
    st.builds(control.Unadmit, ids, *uses, texts),
    st.builds(control.Keepalive, ids),
    st.builds(
        control.Queued,
        ids,
        counts,
        st.integers(0, 4095),
        maybe(st.tuples(spans, spans)),
        maybe(texts),
        st.lists(readings, max_size=2).map(tuple),
        texts,
    ),
    st.builds(control.Answer, ids, st.just(True), fields=answer_fields),
)
