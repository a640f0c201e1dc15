"""What the fake executable runs: the front end, the daemon with -f, or (for tests) a client.

A supervisor asks several times a second in all, so the front end imports next to nothing: 10 ms of a core a question,
not 25. To the daemon it speaks lines of words between tabs.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, socket  # without the 8 ms that Python's own wrapping of it takes

NOT_FOUND = "Cannot find MPS control daemon process"
HELP = {
    2: ("usage: nvidia-cuda-mps-control [-d | -f] [-v] [-S | --static-partitioning]", " [-M | --multiuser-server]"),
    3: (
        "usage: nvidia-cuda-mps-control [options] <module> <verb>\nmodules: server namespace client device",
        "\n-m, --multiuser",
    ),
}
"""By protocol: what is printed for -h, and what more where users can share a server."""


def main(folder: str, arguments: list[str]) -> int:
    """Do what the options say. Returns the exit status."""
    options, version = list(arguments), 2
    if "-p" in options:
        at = options.index("-p")
        version = int(options[at + 1])
        del options[at : at + 2]
    if "-h" in options or "-f" in options:
        return answer_itself(folder, version, options)
    if options:
        return ask("arguments", options)
    return ask("commands", [line.strip() for line in sys.stdin if line.strip()])


def answer_itself(folder: str, version: int, options: list[str]) -> int:
    """What needs no daemon. Returns the exit status."""
    from sharer.simulation.mps.manners import read_manners

    manners = read_manners(folder)
    protocols = manners["protocols"]
    assert isinstance(protocols, list)
    if version not in protocols:
        sys.stdout.write("nvidia-cuda-mps-control: invalid option -- 'p'\n")
        return 1
    if "-h" in options:
        text, option = HELP[version]
        sys.stdout.write(text + (option if manners["many_users"] else "") + "\n")
        return 0
    from sharer.simulation.mps.daemon import serve

    return serve(folder, version, options)


def ask(kind: str, words: list[str]) -> int:
    """Ask the daemon of the pipe directory, and print its answer. Returns the exit status."""
    try:
        connection = connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"], [kind, *words])
        answer = b""
        while part := connection.recv(65536):
            answer += part
    except OSError:
        answer = b""
    status, newline, text = answer.decode().partition("\n")
    sys.stdout.write(text if newline else NOT_FOUND + "\n")
    return int(status) if newline else 1


def connect(directory: str, words: list[str]) -> socket:
    """A connection to a directory's socket, on which these words were said. Raises OSError."""
    connection = socket(AF_UNIX)
    connection.connect(f"{directory}/control")
    connection.sendall(("\t".join(words) + "\n").encode())
    return connection


def be_client(directory: str, gpus: str, user_id: int | None) -> int:
    """Ask to be let in as that user, print the answer, and stay until standard input ends. Returns the exit status."""
    if user_id is not None:
        os.setuid(user_id)  # only now: Python itself may be out of that user's reach
    try:
        connection = connect(directory, ["client", str(os.getpid()), gpus, "./train"])
        answer = connection.recv(100).decode().strip()
    except OSError as error:
        answer = f"cannot connect: {error.strerror}"
    sys.stdout.write(f"{answer or 'cudaErrorIllegalAddress'}\n")
    sys.stdout.flush()
    sys.stdin.read()
    return 0
