"""Attempts to talk: over the network, sockets and shared memory."""

# An attacker calls the system as plainly as can be.

from __future__ import annotations

import socket
from typing import Any

from known import MAP, attempt, call


def connect(family: int, address: Any) -> str:
    with socket.socket(family) as line:
        line.settimeout(2)
        line.connect(address)
        return f"connected to {address}"


@attempt
def reach_the_api_over_loopback() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["api_port"]))


@attempt
def reach_the_victims_port() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["victim_port"]))


@attempt
def reach_a_port_of_the_machine() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["machine_port"]))


@attempt
def reach_the_victims_abstract_socket() -> Any:
    return connect(socket.AF_UNIX, "\0" + MAP["abstract"])


@attempt
def reach_an_abstract_socket_of_the_machine() -> Any:
    return connect(socket.AF_UNIX, "\0" + MAP["machine_abstract"])


@attempt
def reach_the_victims_unix_socket() -> Any:
    return connect(socket.AF_UNIX, MAP["victim_socket"])


@attempt
def command_a_node_manager() -> Any:
    for path in MAP["sockets"]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as line:
                try:
                    line.connect(path)
                except OSError:
                    continue
                return path
    return None


@attempt
def reach_the_outside() -> Any:
    return connect(socket.AF_INET, ("192.0.2.1", 80))  # an address for documentation: leads nowhere even when open


@attempt
def see_network_cards() -> Any:
    return [name for _, name in socket.if_nameindex() if name != "lo"] or None


@attempt
def talk_to_the_machine_below() -> Any:
    return socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK


@attempt
def listen_to_the_wire() -> Any:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


@attempt
def read_the_victims_system_v_memory() -> Any:
    return call("shmget", MAP["sysv_key"], 64, 0)


@attempt
def rename_the_machine() -> Any:
    socket.sethostname("mine")
    return socket.gethostname()
