"""Orthogonal matrices that spread what lies in few channels over all of them."""

import torch
from torch import Generator, Tensor


def spreading(size: int, generator: Generator) -> Tensor:
    """A randomized Hadamard matrix, with signs drawn for its rows, where there is one; else a random rotation.

    Args:
        size: of the matrix.
        generator: on the CPU.

    Returns:
        [size, size], float64, orthogonal.
    """
    found = hadamard(size)
    if found is None:
        return random_orthogonal(size, generator)
    signs = torch.randint(0, 2, (size, 1), generator=generator, dtype=torch.float64).mul(2).sub(1)
    return signs.mul(found).div(size**0.5)


def random_orthogonal(size: int, generator: Generator) -> Tensor:
    """Uniformly distributed (Mezzadri, 2007): the Q of QR of a normal matrix, R's diagonal made positive."""
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    rotation: Tensor = q * r.diagonal().sign()
    return rotation


def keeping_mean(size: int, generator: Generator) -> Tensor:
    """A random orthogonal matrix Q with `1^T Q = 1^T` and `Q 1 = 1`: what it turns keeps its mean.

    With the reflection U that takes the first axis to 1 / sqrt(size): `U diag(1, R) U`, R a random rotation.
    """
    direction = torch.full((size,), -(size**-0.5), dtype=torch.float64)
    direction[0] += 1
    length = direction.norm()
    mirror = torch.eye(size, dtype=torch.float64)
    if length > 0:
        mirror -= 2 * torch.outer(direction / length, direction / length)
    inner = torch.eye(size, dtype=torch.float64)
    inner[1:, 1:] = random_orthogonal(size - 1, generator)
    return mirror @ inner @ mirror


def hadamard(size: int) -> Tensor | None:
    """A matrix of +1 and -1 with orthogonal rows, float64 [size, size]; None where no construction here gives one.

    Sylvester's doubling of one of Paley's two (1933): of order q + 1 for a prime q = 3 mod 4, 2 (q + 1) for one = 1.
    """
    core = _core(size)
    if core is not None or size % 2:
        return core
    half = hadamard(size // 2)
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    return None if half is None else torch.kron(pair, half)


def _core(order: int) -> Tensor | None:
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if order % 4:
        return None
    if (order - 1) % 4 == 3 and _is_prime(order - 1):
        return _bordered(order - 1, -1) + torch.eye(order, dtype=torch.float64)
    half = order // 2 - 1
    if half % 4 == 1 and _is_prime(half):
        unit = torch.eye(half + 1, dtype=torch.float64)
        plus, minus = (
            torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(),
            torch.tensor([[1.0, -1.0], [-1.0, -1.0]]).double(),
        )
        return torch.kron(_bordered(half, 1), plus) + torch.kron(unit, minus)
    return None


def _bordered(prime: int, sign: int) -> Tensor:
    """Which differences of two residues are squares (1) or not (-1), with a border of 1 and `sign`."""
    residues = torch.arange(prime)
    character = torch.full((prime,), -1.0, dtype=torch.float64)
    character[residues.square() % prime] = 1
    character[0] = 0
    matrix = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    matrix[0, 1:], matrix[1:, 0] = 1, sign
    matrix[1:, 1:] = character[(residues[:, None] - residues) % prime]
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
