"""A party's kit: its settings and table, its certificate and key, the port or the server, the clocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from anyparty.doctor.finding import Finding, mended
from anyparty.errors import AnypartyError, ModelError
from anyparty.storage import read_json
from anyparty.wire.flare import greet
from anyparty.wire.flare.reach import Gate, check_certificate, check_key, probe, valid_until
from anyparty.wire.flare.site import FILE, Site
from anyparty.wire.flare.sites import at_kit, port_is_free

SKEW_S = 60.0  # between two clocks, above which certificates and time-outs may go wrong


def settings(kit: Path) -> Iterator[Finding]:
    """Look at the party's own settings, and whether its table is there."""
    what, path = f"{kit.name}: settings", kit / "local" / FILE
    try:
        site = Site.read(kit)
    except AnypartyError as error:
        yield Finding(what=what, level="mend", said=str(error), do="copy the kit anew, or mend the file")
        return
    if site.table is None:
        yield Finding(what=what, level="mend", said=f"{path} names no table", do='write table = "file.csv" there')
    elif not site.table.is_file():
        yield Finding(what=what, level="mend", said=f"{path} names {site.table}, which is not there",
                      do="name the file where it is; paths are relative to the kit")  # fmt: skip
    else:
        yield Finding(what=what, level="fine", said=f"party {site.party!r}, {site.active!r} leads, table {site.table}")


def certificate(kit: Path) -> Iterator[Finding]:
    """Look at the certificate: of the kit's own authority, made out to the party, in date."""
    what, warnings = f"{kit.name}: certificate", list[str]()
    try:
        gate = Gate.of(kit, Site.read(kit).party)
        check_certificate(gate, warnings.append)
    except AnypartyError as error:
        yield Finding(what=what, level="mend", said=str(error))
        return
    if warnings:
        yield Finding(what=what, level="note", said=warnings[0])
    else:
        yield Finding(what=what, level="fine", said=f"valid until {valid_until(gate):%Y-%m-%d}")


def key(kit: Path) -> Iterator[Finding]:
    """Look at who can read the private key."""
    what, open_to = f"{kit.name}: private key", list[str]()
    try:
        check_key(Gate.of(kit), open_to.append)
    except AnypartyError as error:
        open_to.append(str(error))
    if open_to:
        yield Finding(what=what, level="mend", said=open_to[0])
    else:
        yield Finding(what=what, level="fine", said="its user alone can read it")


def line(kit: Path) -> Iterator[Finding]:
    """Look at the server from a passive party's kit; at the port, from the active party's."""
    try:
        gate = Gate.of(kit)
    except AnypartyError as error:
        yield Finding(what=f"{kit.name}: server", level="mend", said=str(error))
        return
    if not gate.serves:
        yield from _server(kit, gate)
    elif running := at_kit(kit):
        yield Finding(what=f"{kit.name}: port {gate.port}", level="fine",
                      said=f"this party's own site listens, process {running[0].pid}")  # fmt: skip
    else:
        yield from mended(f"{kit.name}: port {gate.port}", partial(_free, gate))


def _free(gate: Gate) -> str:
    port_is_free(gate.host, gate.port)
    return "free; the site does not run"


def _server(kit: Path, gate: Gate) -> Iterator[Finding]:
    what = f"{kit.name}: server"
    try:
        why = probe(gate)
    except AnypartyError as error:
        yield Finding(what=what, level="mend", said=str(error))
        return
    if why is None:
        yield Finding(what=what, level="fine", said=f"{gate.place} answers and takes this kit's certificate")
    else:
        yield Finding(what=what, level="note", said=f"{gate.place} cannot be reached ({why})",
                      do="start the active party's site: anyparty party start KIT; look at its firewall")  # fmt: skip


def clocks(kit: Path) -> Iterator[Finding]:
    """Look at how far the others' clocks were from this one when they last said what theirs was, at the active party.

    What is measured is the difference less the time that the message took, which on a working line is below a second.
    """
    try:
        serves = Gate.of(kit).serves
    except AnypartyError:  # told above
        return
    if not serves:
        return
    try:
        seen = read_json(kit / greet.CLOCKS)
    except ModelError:
        yield Finding(what=f"{kit.name}: clocks", level="note", said="no other party has been connected yet",
                      do="look again when they are")  # fmt: skip
        return
    for party, each in sorted(seen.items()):
        what = f"{kit.name}: clock of {party}"
        try:
            behind, at = float(each["behind_s"]), each["at"]
        except (KeyError, TypeError, ValueError):
            yield Finding(what=what, level="note", said=f"{kit / greet.CLOCKS} is damaged: it does not say it",
                          do="remove the file; it is written again when the party is next connected")  # fmt: skip
            continue
        said = f"{abs(behind):,.0f} s {'behind' if behind > 0 else 'ahead of'} this machine's, on {at}"
        if abs(behind) > SKEW_S:
            yield Finding(what=what, level="mend", said=said,
                          do="set both by the network's time (NTP): certificates are valid by the clock")  # fmt: skip
        else:
            yield Finding(what=what, level="fine", said=said)


def unseen() -> Iterator[Finding]:
    """Say that kits cannot be looked at: what reads certificates comes with FLARE."""
    yield Finding(what="kits", level="mend", said="NVIDIA FLARE is not installed", do='pip install "anyparty[flare]"')


LOOKS = (settings, certificate, key, line, clocks)
