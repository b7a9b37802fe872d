"""Curve arithmetic of private alignment: hash ids to points on Curve25519, and blind points.

D. J. Bernstein: "Curve25519: new Diffie-Hellman speed records", PKC 2006; RFC 7748 (X25519), RFC 9380 (Elligator 2).
libsodium multiplies points by secret scalars, through PyNaCl, in constant time and without holding Python's lock. It
also multiplies and inverts the scalars themselves, in constant time. The only arithmetic on Python integers is the
change of coordinates of hashed ids (``_montgomery``), which involves no scalar.

Notation   u      the x-coordinate of a point, 32 bytes little-endian, which represents the point
           H(id)  the id as a point u of the group of prime order l
           s, t   clamped scalars: multiples of 8 in [2^254, 2^255)
Blinding   X25519(s, u) is the x-coordinate of s times the point u. Blinding by s and t gives the same result in either
           order.

Why blinding x-coordinates alone is safe
    *The twist.*  Any 32 bytes are the x-coordinate of a point of the curve or of its twist, and blinding never maps one
    to the other. If ids were hashed directly to 32 bytes, each blinded id would therefore leak one bit. For this reason
    Elligator 2 maps ids to the curve. Points from other parties may lie on the twist. Clamping clears the twist's
    cofactor (4) too, and the twist's group has a prime order of 253 bits. The sender of such points therefore learns
    nothing.
    *Small order.*  Points of order 1, 2, 4, 8 become zero under any clamped scalar. libsodium rejects them, and so does
    ``blind``. A clamped scalar is never a multiple of either prime order, so that no other point becomes zero.
    *Collisions.*  Two ids have the same token only if their hashes are equal. The probability of such a pair among n
    ids is about n^2 / 2^253.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from anyparty.errors import needing

with needing("flare", "private alignment"):
    from nacl.bindings import (
        crypto_core_ed25519_from_uniform,
        crypto_core_ed25519_scalar_invert,
        crypto_core_ed25519_scalar_mul,
        crypto_core_ed25519_scalar_reduce,
        crypto_scalarmult,
        sodium_add,
    )

SIZE = 32
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493


class SmallOrder(ValueError):  # noqa: N818 - the field's term
    """A point has small order, so that blinding would change it to zero."""


def hashed(ids: Iterable[str], salt: str) -> bytes:
    """Return H(id) of every id, 32 bytes each.

    ``salt`` is public and specific to the federation, so that points precomputed for another federation are useless.
    """
    key = hashlib.sha256(salt.encode()).digest()
    digests = (hashlib.blake2b(text.encode(), digest_size=32, key=key, person=b"anyparty.align.1") for text in ids)
    return _montgomery([crypto_core_ed25519_from_uniform(digest.digest()) for digest in digests])


def _montgomery(edwards: Sequence[bytes]) -> bytes:
    """Return u = (1 + y) / (1 - y) of each Ed25519 point (RFC 7748, section 4.1), with a single inversion."""
    ys = [int.from_bytes(point, "little") & (2**255 - 1) for point in edwards]
    before, product = [], 1
    for y in ys:
        before.append(product)
        product = product * (1 - y) % P
    inverse, us = pow(product, -1, P), []
    for y, others in zip(reversed(ys), reversed(before), strict=True):
        us.append(((1 + y) * inverse * others % P).to_bytes(SIZE, "little"))
        inverse = inverse * (1 - y) % P
    return b"".join(reversed(us))


def blind(scalar: bytes, points: bytes) -> bytes:
    """Multiply every point by ``scalar``, and return the products in the same order.

    Raises:
        SmallOrder: a point would become zero.
    """
    try:
        return b"".join(crypto_scalarmult(scalar, points[at : at + SIZE]) for at in range(0, len(points), SIZE))
    except RuntimeError as error:
        raise SmallOrder from error


@dataclass(frozen=True, repr=False)
class Secret:
    """The secret of one party in one alignment: its scalars and the order of its ids, all derived from ``root``.

    The root comes from the operating system, never from the run's seed. Every party knows the seed from the settings,
    and a party that knows all scalars can test a list of ids.

    Attributes:
        root: 32 bytes that determine the other attributes, together with ``nonce``.
        nonce: random bytes if an earlier alignment used the root, otherwise empty. The one-time scalar and the secret
            order depend on them; the scalar s does not.
        scalar: s, applied once to every list of the federation.
        once: r, the one-time scalar that blinds this party's own list while other parties work on the list.
        rest: t with r t = s (mod l), applied to the party's own list after the list has returned.
    """

    root: bytes
    nonce: bytes
    scalar: bytes
    once: bytes
    rest: bytes

    @classmethod
    def of(cls, root: bytes | None = None, nonce: bytes = b"") -> Secret:
        """Derive the secrets from ``root``, by default random bytes, and ``nonce``."""
        root = secrets.token_bytes(SIZE) if root is None else root
        scalar = _clamped(_derive(root, "scalar", SIZE))
        once, rest = _split_scalar(scalar, root, nonce)
        return cls(root, nonce, scalar, once, rest)

    def order(self, n: int) -> NDArray[np.int64]:
        """Return a secret random permutation [n]: entry i is the index of the item that moves to place i."""
        lots = np.frombuffer(_derive(self.root, f"order{self.nonce.hex()}", 16 * n), dtype=np.uint64).reshape(n, 2)
        order = sorting(lots[:, 1])
        ranked = lots[order, 1]
        if (ranked[1:] == ranked[:-1]).any():
            order = np.lexsort((lots[:, 0], lots[:, 1]))
        return order


def random_order(n: int) -> NDArray[np.int64]:
    """Return a random permutation [n] from the operating system's random numbers.

    The permutation sorts n random numbers of 64 bits. Among five million numbers, two are equal with a probability of
    about one in a million. The order of these two is then not random.
    """
    return sorting(np.frombuffer(secrets.token_bytes(8 * n), dtype=np.uint64))


def sorting(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the permutation [n] that sorts the numbers; torch needs a fifth of the time of numpy."""
    signed = (numbers ^ np.uint64(2**63)).view(np.int64)  # in the same order
    return torch.from_numpy(signed).argsort().numpy()


def _derive(root: bytes, name: str, length: int) -> bytes:
    return hashlib.shake_256(root + name.encode()).digest(length)


def _clamped(raw: bytes) -> bytes:
    """Clamp 32 bytes to an X25519 scalar (RFC 7748, section 5)."""
    return bytes([raw[0] & 248, *raw[1:31], raw[31] & 127 | 64])


def _split_scalar(scalar: bytes, root: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """Return two clamped scalars r and t with r t = ``scalar`` (mod l).

    X25519 accepts only clamped scalars. A random r has a suitable t with a probability of about one half, so several r
    are tried.
    """
    for attempt in range(256):
        once = _clamped(_derive(root, f"once {nonce.hex()}{attempt}", SIZE))
        rest = crypto_core_ed25519_scalar_mul(_modulo(scalar), crypto_core_ed25519_scalar_invert(_modulo(once)))
        for _ in range(8):  # try t, t + l, ..., t + 7 l, until one of these numbers is clamped
            if rest == _clamped(rest):
                return once, rest
            rest = sodium_add(rest, L.to_bytes(SIZE, "little"))
    raise AssertionError("half of all r have a t")


def _modulo(scalar: bytes) -> bytes:
    """Return ``scalar`` modulo l, the order of the group."""
    return crypto_core_ed25519_scalar_reduce(scalar + bytes(SIZE))
