"""People who become members of a lab at an issuer: the commands, the tracker and the issuer, each a process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.link.link import Link
from rpcsys.wire.sign_in import parse_line
from tests.live.daemons import Daemons, wait_until
from tests.live.lab_site import KEEPER, UNAUTHORIZED, LabSite
from tests.tracker.issuers import CLIENT, IssuerProcess, running

pytest.importorskip("jwt")
RULES = """
[[allow]]
who = ["keepers"]
rights = ["keeper"]
[[allow]]
who = ["compiler"]
keys = ["rpi4"]
rights = ["see"]
[oidc]
issuer = "{issuer}"
client_id = "{client}"
groups_claim = "groups"
lasts = "{lasts}"
"""


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[IssuerProcess]:
    with running(tmp_path / "issuer") as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, daemons: Daemons, issuer: IssuerProcess) -> LabSite:
    made = LabSite(tmp_path, daemons)
    made.init()
    trust(made, issuer)
    made.start()
    return made


def trust(site: LabSite, issuer: IssuerProcess, lasts: str = "12h") -> None:
    (site.path / "policy.toml").write_text(RULES.format(issuer=issuer.url, client=CLIENT, lasts=lasts))


def sign_in(site: LabSite, user: str, *words: str, typed: str = "", status: int = 0) -> tuple[str, str]:
    """What ``rpcsys login`` prints, and what it says on standard error."""
    with site.begin(user, "login", *words) as process:
        out, err = process.communicate(typed, timeout=60)
    assert process.returncode == status, out + err
    assert "Traceback" not in err
    return out, err


def line(site: LabSite) -> str:
    text = site.run(KEEPER, "lab", "line")
    assert parse_line(text).addresses == (site.where,)
    return text.strip()


def test_one_signs_in_and_again(site: LabSite, issuer: IssuerProcess) -> None:
    issuer.set("id_token", issuer.token())
    out, err = sign_in(site, "ann", line(site))
    assert err == f"Open {issuer.url}/confirm in a browser, sign in, and confirm the code ABCD-EFGH\n"
    assert out.startswith("you are ann@lab.example in lab basement until ")
    assert out.endswith(f"; then type rpcsys login {site.where} again\n")
    who = site.who("ann")
    assert (who["member"], who["groups"], who["rights"]) == ("ann@lab.example", ["compiler"], ["see"])
    assert who["expires"] == pytest.approx(time.time() + 12 * 3600, abs=120)
    first = site.credential("ann")
    with Link.open(site.where, credential=first) as link:
        issuer.set("id_token", issuer.token(groups=["others"], jti="2"))
        sign_in(site, "ann", site.where)
        wait_until(lambda: site.who("ann")["groups"] == ["others"], 20, "the groups are the new ones")
        second = site.credential("ann")
        assert second.token != first.token
        assert link.command([1], timeout=20) == 0, "what runs goes on"
    did = [(row["did"], row["who"]) for row in audited(site)]
    assert did.count(("sign in", "ann@lab.example")) == 2
    secrets = [one.token[-43:] for one in (first, second)] + [issuer.token().partition(".")[0]]
    written = site.tracker.stderr() + json.dumps(audited(site))
    assert not [secret for secret in secrets if secret in written]


def audited(site: LabSite) -> list[dict]:
    return [json.loads(line) for line in (site.path / "audit.jsonl").read_text().splitlines()]


def test_an_issuer_proves_itself_by_its_certificate(site: LabSite, tmp_path: Path, monkeypatch) -> None:
    with running(tmp_path / "tls", tls=True) as issuer:
        site.tracker.terminate()
        trust(site, issuer)
        site.start()
        issuer.set("id_token", issuer.token())
        shown = line(site)
        assert "CERTIFICATE_VERIFY_FAILED" in sign_in(site, "ann", shown, status=2)[1]
        monkeypatch.setenv("SSL_CERT_FILE", str(issuer.certificate))  # for the desk; the tracker does not have it
        assert "cannot be read" in sign_in(site, "ann", shown, status=UNAUTHORIZED)[1]
        site.tracker.terminate()
        site.start()
        assert sign_in(site, "ann", shown)[0].startswith("you are ann@lab.example")


def test_the_line_may_be_pasted(site: LabSite, issuer: IssuerProcess) -> None:
    issuer.set("id_token", issuer.token())
    assert sign_in(site, "ann", typed=line(site) + "\n")[0].startswith("you are ann@lab.example")


def test_a_sign_in_displaces_no_member(site: LabSite, issuer: IssuerProcess) -> None:
    site.join("bo")
    issuer.set("id_token", issuer.token(email="bo"))
    _, err = sign_in(site, "mallory", line(site), status=UNAUTHORIZED)
    assert "bo is a member that this sign-in is not for: ask a keeper for an invitation" in err
    assert site.who("bo")["expires"] is None
    issuer.set("id_token", issuer.token(email="keepers"))
    assert "keepers is a group in lab basement" in sign_in(site, "mallory", line(site), status=UNAUTHORIZED)[1]


def test_who_is_revoked_is_out_and_stays_out(site: LabSite, issuer: IssuerProcess) -> None:
    issuer.set("id_token", issuer.token())
    sign_in(site, "ann", line(site))
    site.run(KEEPER, "lab", "revoke", "ann@lab.example")
    assert f"or sign in again: rpcsys login {site.where}" in site.run("ann", "whoami", status=UNAUTHORIZED)
    issuer.set("id_token", issuer.token(jti="2"))
    assert "was revoked: ask a keeper" in sign_in(site, "ann", site.where, status=UNAUTHORIZED)[1]


def test_a_membership_ends_and_its_connections(site: LabSite, issuer: IssuerProcess) -> None:
    trust(site, issuer, "3s")
    issuer.set("id_token", issuer.token())
    wait_until(lambda: '"3s"' in (site.path / "policy.toml").read_text(), 5, "the rules are there")
    time.sleep(2.5)  # the tracker reads them again within 2 s
    sign_in(site, "ann", line(site))
    began = time.monotonic()
    with Link.open(site.where, credential=site.credential("ann")) as link, pytest.raises(Exception, match="gone"):
        link.receive(30)
    assert time.monotonic() - began < 10
    site.run("ann", "whoami", status=UNAUTHORIZED)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"aud": "other"}, "Audience"), ({"exp": 1}, "expired"), ({"email_verified": None}, "not verified")],
)
def test_another_token_is_refused_with_the_reason(site: LabSite, issuer: IssuerProcess, change, why) -> None:
    issuer.set("id_token", issuer.token(**change))
    _, err = sign_in(site, "ann", line(site), status=UNAUTHORIZED)
    assert f"the sign-in at {issuer.url} is not accepted: " in err
    assert why in err
    wait_until(lambda: any(why in row.get("result", "") for row in audited(site)), 10, "it is audited")


def test_a_giant_token_ends_its_connection_only(site: LabSite, issuer: IssuerProcess) -> None:
    issuer.set("id_token", issuer.token(filler="x" * 100_000))
    _, err = sign_in(site, "ann", line(site), status=1)
    assert err.count("\n") == 2
    assert site.who(KEEPER)["member"] == KEEPER


def test_a_lab_without_an_issuer_and_mistakes_are_sentences(site: LabSite, issuer: IssuerProcess) -> None:
    shown = line(site)
    issuer.set("error", "access_denied")
    (site.path / "policy.toml").write_text('[[allow]]\nwho = ["keepers"]\nrights = ["keeper"]\n')

    def refused() -> str:
        with site.begin("ann", "login", shown) as process:
            return process.communicate(timeout=60)[1]

    wait_until(
        lambda: "nobody signs in to lab basement: ask its keeper for an invitation" in refused(), 20, "it says so"
    )
    assert "there is no credential here for 127.0.0.1:9" in site.run("ann", "login", "127.0.0.1:9", status=2)
    assert "is not whole" in site.run("ann", "login", shown[:-9], status=2)
