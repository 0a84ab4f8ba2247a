"""Bytes between the two sides of a connection on which TLS ends: order, stops, ends and breaks."""

from __future__ import annotations

import hashlib
import os
import socket
import struct

import pytest

from rpcsys.errors import SessionLost
from rpcsys.link.termination import LINGER_S
from rpcsys.link.tls import STRETCH
from tests.link.terminators import Reading, Sending, at_end, both

BLOB = os.urandom(1 << 20) * 8


def test_every_byte_arrives_in_order_both_ways() -> None:
    with both() as one:
        client, server = one.session()
        total = 2 + 2 * len(BLOB)
        sendings = [Sending(client, BLOB), Sending(server, BLOB[::-1])]
        readings = [Reading(server), Reading(client)]
        one.until(lambda: sum(sending.go_on() for sending in sendings) + sum(r.go_on() for r in readings) == total)
        assert hashlib.sha256(readings[0].data).digest() == hashlib.sha256(BLOB).digest()
        assert bytes(readings[1].data) == BLOB[::-1]


@pytest.mark.parametrize("to_server", [True, False])
def test_a_receiver_that_stops_costs_a_bounded_memory_and_stops_no_other(to_server: bool) -> None:
    with both() as one:
        slow, busy = one.session(), one.session()
        source, sink = slow if to_server else reversed(slow)
        sending = Sending(source, BLOB * 4)
        one.fill(sending)
        busy[0].send(b"ping")
        one.until(lambda: Reading(busy[1]).go_on() == 4)
        reading = Reading(sink)
        one.until(lambda: sending.go_on() & (reading.go_on() == len(BLOB) * 4))
        assert hashlib.sha256(reading.data).digest() == hashlib.sha256(BLOB * 4).digest()


@pytest.mark.parametrize("from_client", [True, False])
def test_an_end_is_passed_on_after_the_last_byte_while_the_other_way_goes_on(from_client: bool) -> None:
    with both() as one:
        client, server = one.session()
        first, second = (client, server) if from_client else (server, client)
        first.sendall(b"last")
        first.shutdown(socket.SHUT_WR)
        reading = Reading(second)
        one.until(lambda: bool(reading.go_on()) and reading.ended)
        assert bytes(reading.data) == b"last"
        back, sending = Reading(first), Sending(second, BLOB)
        one.until(lambda: sending.go_on() & (back.go_on() == len(BLOB)))
        assert bytes(back.data) == BLOB
        second.close()
        one.closed()
        assert one.ended == one.dialled == [None]


def test_an_end_comes_through_while_the_other_way_is_stuck() -> None:
    with both() as one:
        client, server = one.session()
        sending = Sending(server, BLOB * 4)
        one.fill(sending)
        client.shutdown(socket.SHUT_WR)
        reading = Reading(client)
        one.until(lambda: sending.go_on() & (reading.go_on() == 4 * len(BLOB)))
        one.until(lambda: at_end(server))
        assert bytes(reading.data) == BLOB * 4


def test_a_killed_client_ends_the_server_and_the_reverse() -> None:
    with both() as one:
        for number in (0, 1):
            ends = one.session()
            ends[1 - number].send(b"unread")
            ends[number].close()
            one.until(lambda ends=ends, number=number: at_end(ends[1 - number]))  # type: ignore[misc]
            ends[1 - number].close()
            one.closed()


def test_the_last_words_of_a_session_that_does_not_read_arrive() -> None:
    with both() as one:
        client, server = one.session()
        sending = Sending(client, BLOB * 4)
        one.fill(sending)
        server.send(b"killed")
        server.close()  # with unread bytes: the other end is told of a reset
        reading = Reading(client)
        one.until(lambda: bool(reading.go_on()) and reading.ended)
        assert bytes(reading.data) == b"killed"
        client.close()
        one.closed()


def test_a_reset_of_the_network_is_told_and_what_came_before_is_delivered() -> None:
    with both() as one:
        client, server = one.session()
        client.send(b"before")
        one.until(lambda: Reading(server).go_on() == 6)
        net = next(each.net for each in one.terminator._terminations if each.on_end == one.dialled.append)
        net.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.terminator.forget(net.fileno())
        net.close()
        one.until(lambda: at_end(server) and bool(one.ended))
        assert isinstance(one.ended[0], SessionLost)


def test_a_cut_without_the_word_of_tls_is_an_error() -> None:
    with both() as one:
        _, server = one.session()
        net = next(each.net for each in one.terminator._terminations if each.on_end == one.dialled.append)
        net.shutdown(socket.SHUT_WR)
        one.until(lambda: at_end(server) and bool(one.ended))
        assert isinstance(one.ended[0], SessionLost)
        assert "unexpected eof" in str(one.ended[0])


def test_changed_bytes_end_it() -> None:
    with both() as one:
        _, server = one.session()
        net = next(each.net for each in one.terminator._terminations if each.on_end == one.dialled.append)
        net.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        one.until(lambda: at_end(server) and bool(one.ended))
        assert isinstance(one.ended[0], SessionLost)


def test_a_client_that_neither_reads_nor_closes_is_let_go_after_its_session() -> None:
    clock = [0.0]
    with both(clock=lambda: clock[0]) as one:
        client, server = one.session()
        sending = Sending(server, BLOB * 4)
        one.fill(sending)
        server.close()
        for _ in range(20):
            one.terminator.turn(0.01)
        assert len(one.terminator) == 2
        clock[0] = LINGER_S + 1.0
        one.until(lambda: bool(one.ended))
        client.close()
        one.closed()


def test_steps_are_short_while_there_are_many() -> None:
    with both() as one:
        assert one.terminator.stretch == STRETCH
