"""TLS of a link to a lab's tracker: both ends are known before anything is said."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from rpcsys.errors import NoTls, WrongPin
from rpcsys.link import renewal, tls
from rpcsys.link.credential import Credential

_SPACE = 1 << 16


class LabTls:
    """The client's end, between bytes and bytes. ``open``: the tracker has proved itself, and can be spoken to.

    Send what :meth:`outgoing` returns after each other method.
    """

    def __init__(self, address: Tuple[str, int], credential: Credential) -> None:
        self._where = "{}:{}".format(*address)
        self._credential = credential
        self._lab = credential.lab
        self._renewal: Tuple[Optional[int], str] = (None, "")  # the id of the question, and the new token's hash
        self._pins = [pin.partition(":")[2] for pin in credential.pins]
        self._tunnel = tls.Tunnel(tls.client_context(), server=False, pins=self._pins)
        self._space = memoryview(b"")
        self._shake_hands()

    @property
    def open(self) -> bool:
        return self._tunnel.open

    @property
    def by_spare(self) -> bool:
        """Whether the tracker has proved itself by the second of its pins: it hands out those that are to be held."""
        return self._tunnel.pin == self._pins[-1] != self._pins[0]

    def follow(self, hello: Dict[str, Any], number: int) -> Optional[Dict[str, Any]]:
        """Keep what the answer to the hello hands out; the question to ask with the id ``number``, if there is one."""
        digest = renewal.follow(self._credential, hello, self.by_spare)
        if not digest:
            return None
        self._renewal = (number, digest)
        return {"op": "replace_token", "id": number, "hash": digest}

    @property
    def renews(self) -> bool:
        """Whether :meth:`follow`'s question is not answered yet."""
        return self._renewal[0] is not None

    def settles(self, message: Any) -> bool:
        """Whether a message is the answer to :meth:`follow`'s question; the new token is then in use."""
        number, digest = self._renewal
        if number is None or type(message) is not dict or message.get("id") != number or "op" in message:
            return False
        self._renewal = (None, "")
        if message.get("ok") is True:
            renewal.replaced(self._credential, digest)
        return True

    def outgoing(self) -> bytes:
        """What is to be sent, encrypted."""
        return self._tunnel.outgoing()

    def seal(self, data: bytes) -> bytes:
        """``data``, encrypted."""
        return self._tunnel.seal(data)

    def receive(self, data: bytes) -> bytes:
        """What the received bytes say; nothing during the handshake.

        Raises `WrongPin`, `NoTls`: what answers is not the lab's tracker. Raises EOFError: it closed the connection;
        OSError: bytes were changed.
        """
        self._tunnel.feed(data)
        if not self._tunnel.open:
            self._shake_hands()
        opened = bytearray()
        if self._tunnel.open:
            self._space = self._space or memoryview(bytearray(_SPACE))
            try:
                while count := self._tunnel.read_into(self._space):
                    opened += self._space[:count]
                    if self._tunnel.drained:
                        break
            except (EOFError, OSError):
                if not opened:  # else the next receipt reports it
                    raise
        return bytes(opened)

    def _shake_hands(self) -> None:
        try:
            self._tunnel.handshake()
        except WrongPin:
            raise WrongPin(
                f"what answers at {self._where} is not lab {self._lab} (its key is sha256:{self._tunnel.pin[:8]}…): a "
                "wrong address, or somebody in between; nothing was sent. If its keeper made the lab anew: rpcsys login"
            ) from None
        except NoTls:
            raise self.refused() from None

    def refused(self) -> NoTls:
        """The error for what does not shake hands."""
        held = self._credential.path or "the credential"
        return NoTls(
            f"{self._where} does not speak TLS 1.3, and you have a credential of lab {self._lab} there: nothing was "
            f"sent. Its keeper types: rpcsys tracker --lab DIR; if that lab is gone, remove {held}"
        )
