"""What counts as a session's memory, in processes with each kind of it."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import memory_usage

PREAMBLE = """
import ctypes, json, mmap, os, tempfile, threading, time
from rpcsys.server.sandbox.limits import members
from rpcsys.server.sandbox.memory_usage import MemoryUsage
MB = 1 << 20

def taken(roots):
    usage = MemoryUsage()
    for pid in members(roots):
        usage.scan(pid)
        usage.measure(pid)
    usage.scan_sockets()
    return usage.taken

before = taken([os.getpid()])

def held(count):
    memfd = os.memfd_create("held")
    for _ in range(count):
        os.write(memfd, bytes(MB))
    return memfd

def bound():
    usage = MemoryUsage()
    usage.scan(os.getpid())
    return usage.bound

def more():
    print(json.dumps((taken([os.getpid()]) - before) / MB))
"""


def run(code):
    command = [sys.executable, "-c", PREAMBLE + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_processes_and_shared_memory_count_together():
    code = """
block = mmap.mmap(-1, 32 << 20)
block.write(b"x" * (32 << 20))
private = b"y" * (16 << 20)
reading, writing = os.pipe()
if os.fork() == 0:
    own = b"z" * (16 << 20)
    block[0]
    os.write(writing, b"1")
    time.sleep(60)
os.read(reading, 1)
child = int(open(f"/proc/self/task/{os.getpid()}/children").read())
print(json.dumps([taken([os.getpid()]), bound()]))
os.kill(child, 9)
"""
    taken, bound = run(code)
    assert 64 << 20 < taken < 96 << 20
    assert bound > 48 << 20


def test_a_memfd_counts_once():
    code = """
memfd = held(40)
other = os.dup(memfd)
if os.fork() == 0:
    more()
    os._exit(0)
os.wait()
"""
    assert 30 < run(code) < 50  # what a fork shares is half the child's
    assert 38 < run("memfd = held(40)\nmore()") < 50


def test_a_mapped_memfd_counts_once_whether_open_or_closed():
    code = """
memfd, closed = held(40), held(20)
one, two = mmap.mmap(memfd, 40 * MB), mmap.mmap(closed, 20 * MB)
os.close(closed)
sum(one[::4096]) + sum(two[::4096])
more()
"""
    assert 58 < run(code) < 70


def test_private_copies_of_a_memfd_count_in_addition():
    code = """
memfd = held(40)
copy = mmap.mmap(memfd, 40 * MB, flags=mmap.MAP_PRIVATE)
copy.write(b"x" * (40 * MB))
more()
"""
    assert 78 < run(code) < 90


def test_descriptors_of_a_thread_of_its_own_count():
    code = """
done = threading.Event()
def hide():
    assert not ctypes.CDLL(None).unshare(0x400)
    held(40)
    done.set()
    time.sleep(60)
threading.Thread(target=hide, daemon=True).start()
done.wait()
more()
os._exit(0)
"""
    assert 38 < run(code.replace("os._exit(0)", "import sys; sys.stdout.flush(); os._exit(0)")) < 50


def test_an_undumpable_process_counts_by_its_resident_pages():
    code = """
kept = b"x" * (40 * MB)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
more()
"""
    assert 38 < run(code) < 90


def test_socket_buffers_count():
    code = """
import socket
kept, total = [], 0
while total < 40 * MB:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
    one.setblocking(False)
    total += one.send(bytes(4 * MB))
    kept += [one, other]
more()
"""
    assert 38 < run(code) < 100


def test_a_process_that_has_ended_takes_no_memory():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    usage = memory_usage.MemoryUsage()
    usage.scan(gone.pid)
    usage.measure(gone.pid)
    assert usage.bound == usage.taken == 0


# Sockets


def inode(sock):
    return os.fstat(sock.fileno()).st_ino


def fill(sock):
    sock.setblocking(False)
    total = 0
    try:
        while True:
            total += sock.send(bytes(65536))
    except BlockingIOError:
        return total


def test_unread_data_counts_for_its_sender():
    one, other = socket.socketpair()
    with one, other:
        both = {inode(one), inode(other)}
        assert memory_usage.buffered(both) == 0
        total = fill(one)
        assert total <= memory_usage.buffered(both) < 3 * total
        assert memory_usage.buffered({inode(other)}) == 0
        assert memory_usage.buffered(both) <= 2 * memory_usage.most_buffered()


def test_unread_data_of_a_closed_sender_counts_for_the_receiver():
    one, other = socket.socketpair()
    with other:
        total = fill(one)
        one.close()
        assert memory_usage.buffered({inode(other)}) >= total


def test_data_sent_before_the_accept_counts_for_the_listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "place"))
        listener.listen(8)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "place"))
            total = fill(client)
        assert memory_usage.buffered({inode(listener)}) >= total


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_within_a_process_count(family, address):
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server((address, 0), family=family))
        except OSError:
            pytest.skip(f"no {address} here")
        mine, total = set(), 0
        while total < 2 * memory_usage.LITTLE:
            client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
            accepted = stack.enter_context(listener.accept()[0])
            mine |= {inode(client), inode(accepted)}
            total += fill(client)
        assert total <= memory_usage.buffered(mine) < 4 * total


def test_other_sockets_do_not_count():
    one, other = socket.socketpair()
    with one, other:
        fill(one)
        assert memory_usage.buffered(frozenset()) == 0
