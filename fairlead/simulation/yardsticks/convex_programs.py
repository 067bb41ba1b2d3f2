"""Sharing device types among jobs as convex programs, for an interior-point solver.

Such programs have many best answers, and which one is taken decides who gets what is left over. The published figures
come from interior-point solvers, which end in the middle of the best answers; one that ends in a corner, as simplex
does, would be another policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fairlead.errors import Refused

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeFractions:
    """Fractions of time, jobs by types: none negative, each job's at most 1, each type's devices at most all there are.

    A program has these fractions as its first variables, type after type, and as many more as it likes.
    """

    gangs: Array
    capacity: Array

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.gangs), len(self.capacity)

    @property
    def size(self) -> int:
        return len(self.gangs) * len(self.capacity)

    def rows(self, others: int) -> tuple[Any, Array]:
        """The constraints ``A v <= b`` that every sharing has, with so many other variables."""
        jobs, types = self.shape
        whole = sparse.kron(sparse.csr_array(np.ones((1, types))), sparse.eye_array(jobs))
        devices = sparse.kron(sparse.eye_array(types), sparse.csr_array(self.gangs[None, :]))
        table = sparse.vstack([-sparse.eye_array(self.size), devices, whole])
        bounds = np.concatenate([np.zeros(self.size), self.capacity, np.ones(jobs)])
        return padded(table, others), bounds

    def speeds(self, table: Array) -> Any:
        """The rows that give each job's speed from its fractions."""
        return sparse.hstack([sparse.diags_array(column) for column in table.T])

    def fractions(self, variables: Array) -> Array:
        jobs, types = self.shape
        return np.asarray(variables[: self.size].reshape(types, jobs).T.clip(0.0, 1.0), dtype=np.float64)


def padded(table: Any, others: int) -> Any:
    """The table with columns of nothing for other variables."""
    return sparse.hstack([table, sparse.csr_array((table.shape[0], others))])


def minimise(cost: Array, table: Any, bounds: Array, hyperbolas: int = 0) -> Array | None:
    """The best variables with ``table v <= bounds``; None if there are none.

    Of the last rows, each three say by ``bounds - table v`` that they lie in a second-order cone.
    """
    try:
        import clarabel
    except ImportError as error:
        raise Refused("this policy needs the solver clarabel", fix="pip install 'fairlead[simulation]'") from error
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    cones = [clarabel.NonnegativeConeT(len(bounds) - 3 * hyperbolas)]
    cones += [clarabel.SecondOrderConeT(3)] * hyperbolas
    nothing = sparse.csc_matrix((len(cost), len(cost)))
    matrix = sparse.csc_matrix(table)
    solved = clarabel.DefaultSolver(nothing, cost, matrix, bounds, cones, settings).solve()
    usable = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
    return np.array(solved.x) if solved.status in usable else None
