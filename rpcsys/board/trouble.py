"""What ssh and a board say when something is wrong -> one line that says what to do about it."""

from __future__ import annotations

from rpcsys.errors import ConnectError, RpcsysError

#: OpenSSH's words (they are in no language but English) -> what they come to. {to} is how ssh was called, {host}
#: the host. The first that is found counts.
_SSH = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "the host key of {host} is not the one it had: a new system on the board, or "
    "another machine in its place; if it is the board's, type: ssh-keygen -R {known}, and: ssh {to}",
    "Host key verification failed": "the host key of {host} is unknown: type: ssh {to}, compare it and accept it "
    "(or, on a network you trust: -o StrictHostKeyChecking=accept-new)",
    "Permission denied": "{host} lets nobody in with these credentials (permission denied): type: ssh-copy-id {to}, or "
    "name a key with -i, or another user",
    "Too many authentication failures": "{host} was offered too many keys: name the one with -i and -o IdentitiesOnly=yes",
    "Could not resolve hostname": "there is no host called {host}: is the name right? An address will do, too",
    "Connection refused": "{host} refuses ssh: is sshd running there, and on this port (-p)?",
    "not responding": "{host} has stopped answering: is it still on?",
    "timed out": "{host} does not answer: is it on, and can this machine reach it?",
    "No route to host": "{host} does not answer: is it on, and can this machine reach it?",
    "Network is unreachable": "{host} is on a network that this machine has no way to",
    "no matching host key type": "{host} knows only old kinds of host keys: -o HostKeyAlgorithms=+ssh-rsa",
    "no matching key exchange": "{host} knows only old ways of key exchange: -o KexAlgorithms=+diffie-hellman-group14-sha1",
}


def of_ssh(said: str, words: str, host: str, known: str) -> ConnectError:
    """The error that ssh's standard error comes to.

    ``words`` is what stands behind ``ssh`` to try it by hand, ``known`` what the host is called among known hosts.
    """
    for sign, meaning in _SSH.items():
        if sign in said:
            return ConnectError(meaning.format(to=words, host=host, known=known))
    return ConnectError(f"the connection to {host} broke: {_last(said) or 'ssh said nothing'}")


def of_board(said: str, host: str, doing: str) -> RpcsysError:
    """The error that what a command on the board printed comes to, which was ``doing`` something."""
    if "No space left on device" in said:
        return RpcsysError(f"{host} has no space left ({doing}): see: df -h; the old version, if any, is as it was")
    broken = [" ".join(line.split()[1:]) for line in said.splitlines() if line.startswith("broken ")]
    if broken:
        return RpcsysError(f"{host} cannot serve: {'; '.join(broken)}")
    if "incorrect password" in said or "Sorry, try again" in said:
        return RpcsysError(f"sudo on {host} does not take this password")
    if "is not in the sudoers file" in said or "may not run sudo" in said:
        return RpcsysError(f"this user may not use sudo on {host}: connect as root, or as one who may")
    return RpcsysError(f"{doing} on {host} failed: {_last(said) or 'it said nothing'}")


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("install.sh: error: ").removeprefix("rpcsys: error: ")[:300] if lines else ""
