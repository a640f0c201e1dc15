"""A fake `nvidia-cuda-mps-control`, as a real executable: it speaks the same commands, and misbehaves on demand.

steering  FakeMps: makes the executable, says how it behaves, tells what it was asked; FakeClient: a process on it
manners   how that is written down for the executable
control   what the executable runs: front end or daemon, by its options
daemon    the daemon's sockets, servers and clients
legacy    the commands of v2
modules   the commands of v3

`control` and what it imports are the standard library's only, so that each question costs 30 ms and not a second.
"""
