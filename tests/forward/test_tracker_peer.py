"""Tracker connections of a desk: what passes both ways, and what is answered when the tracker is not there."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rpcsys.wire.tracker import MAX_FRAME
from tests.forward.desks import Desk, forwarder, run, until
from tests.scripted_peers import WELCOME, ScriptedTracker

KEY = "rpi4:t1-" + "ab" * 32 + "-" + "cd" * 16
REQUEST, SUMMARY = [4, "rpi4", "", 1], [6]


def commands(asked: Any) -> list[Any]:
    return {4: [[0, ["10.0.0.7", 9090, KEY]]], 6: [[0, {"queue_info": {}}]]}.get(asked[0], [0])


def test_tvms_messages_pass_and_a_lease_is_at_the_desk() -> None:
    async def main() -> None:
        with ScriptedTracker(commands=commands) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                assert await desk.ask(SUMMARY) == [0, {"queue_info": {}}]
                assert await desk.ask(REQUEST) == [0, ["127.0.0.1", service.port, KEY]]
                assert await desk.ask([1]) == 0
                assert await desk.ask([3, "rpi4", [9090, "rpi4:0.5"], None]) == -1
                assert [message[0] for message in tracker.received] == [1, 6, 4, 1]  # the first is the hello

    run(main())


def test_a_client_of_rpcsys_gets_the_trackers_hello_and_answers() -> None:
    async def main() -> None:
        with ScriptedTracker(lambda asked: [{"id": asked["id"], "ok": True}]) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                assert await desk.ask([1, {"op": "hello", "version": "0", "capabilities": []}]) == WELCOME
                assert await desk.ask({"op": "whoami", "id": 7}) == {"id": 7, "ok": True}

    run(main())


def test_messages_in_one_piece_and_in_single_bytes() -> None:
    async def main() -> None:
        with ScriptedTracker(commands=commands) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                desk.send(SUMMARY, SUMMARY, REQUEST)
                assert [(await desk.receive())[0] for _ in range(3)] == [0, 0, 0]
                for byte in b"\x03\0\0\0[6]":
                    desk.writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                assert await desk.receive() == [0, {"queue_info": {}}]

    run(main())


def test_without_a_tracker_the_client_is_told_and_the_next_message_tries_again() -> None:
    async def main() -> None:
        with ScriptedTracker(commands=commands) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                assert (await desk.ask(SUMMARY))[0] == 0
                for sock in tracker._connections:
                    sock.shutdown(socket.SHUT_RDWR)
                code, why = await desk.ask(REQUEST)
                while code == -1:  # the first may find the old connection's end
                    assert "tracker" in why
                    code, why = await desk.ask(REQUEST)
                assert why == ["127.0.0.1", service.port, KEY]

    run(main())


def test_a_request_that_waits_is_answered_when_the_tracker_goes() -> None:
    async def main() -> None:
        with ScriptedTracker(commands=lambda asked: []) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                desk.send(REQUEST)
                await until(lambda: len(tracker.received) == 2)
                for sock in tracker._connections:
                    sock.shutdown(socket.SHUT_RDWR)
                code, why = await desk.receive()
                assert code == -1
                assert "is gone" in why

    run(main())


def test_the_request_of_a_client_that_leaves_ends_with_its_link() -> None:
    async def main() -> None:
        with ScriptedTracker(commands=lambda asked: []) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                desk.send(REQUEST)
                await until(lambda: len(tracker.received) == 2)
                desk.writer.close()
                await until(lambda: tracker._connections[0].fileno() < 0)

    run(main())


def test_bytes_that_are_no_messages_end_the_connection() -> None:
    async def main() -> None:
        with ScriptedTracker() as tracker:
            async with forwarder(tracker.address) as service:
                for data in (b"\x02\0\0\0{]", (MAX_FRAME + 1).to_bytes(4, "little"), b"\xff" * 8):
                    desk = await Desk.tracker(service.port)
                    desk.writer.write(data)
                    assert await desk.reader.read() == b""

    run(main())
