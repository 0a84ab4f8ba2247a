"""The signature of webhooks, by the example of Standard Webhooks, and the file of its secrets."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.tracker.webhook_signature import MAX_SECRETS, read_secrets, signed

#: The example that the libraries of Standard Webhooks are tested with.
SECRET, ID, AT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY, SIGNATURE = b'{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "secret"


def test_the_standards_own_example(file):
    file.write_text(SECRET + "\n")
    headers = signed(ID, AT + 0.9, BODY, read_secrets(str(file)))
    assert headers == {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": SIGNATURE}


def test_each_of_several_secrets_signs_and_none_signs_nothing(file):
    file.write_text(f"{OTHER}\n{SECRET.removeprefix('whsec_')}\n")
    first, second = signed(ID, AT, BODY, read_secrets(str(file)))["webhook-signature"].split(" ")
    assert second == SIGNATURE
    made = hmac.new(bytes(range(32)), f"{ID}.{AT}.".encode() + BODY, hashlib.sha256).digest()
    assert first == "v1," + base64.b64encode(made).decode()
    assert "webhook-signature" not in signed(ID, AT, BODY, ())


MANY = f"{SECRET}\n" * (MAX_SECRETS + 1)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "a b", "ü" * 32, "A" * 91, MANY])
def test_what_is_no_secret_is_refused_in_one_line(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="--webhook-secret") as problem:
        read_secrets(str(file))
    assert "\n" not in str(problem.value)


def test_a_file_that_is_not_there(file):
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        read_secrets(str(file))


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-secret"
    path.write_bytes(data)
    try:
        secrets = read_secrets(str(path))
    except ConfigError:
        return
    assert all(24 <= len(secret) <= 64 for secret in secrets)
