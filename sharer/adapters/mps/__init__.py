"""MPS control daemons: how they are started, spoken to, watched and described.

daemon       ControlDaemon: what the flow `supervise` uses for one daemon; it puts the others together
legacy       the commands and answers of the interface that all drivers have (v2)
namespaces   those of MPS v3, and its configuration file
control      one bounded question to the control executable
process      the daemon's process: started apart from us, found again, ended
directories  the folders of one daemon, made once and kept
places       those that containers are given, for the agent
logs         new lines of a daemon's logs
states       state.json of each daemon: written here, read by the agent
state_text   what is in it
wanted       what the agent wants, from its report; the last one is kept
modes        which compute mode each GPU had before MPS
files        small JSON files, whole or not at all
"""

from sharer.adapters.mps.places import MpsDirectories
from sharer.adapters.mps.states import MpsStateFiles

__all__ = ["MpsDirectories", "MpsStateFiles"]
