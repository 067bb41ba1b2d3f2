"""The real store, loop, executor, state machine, backend and links on a virtual clock, in storms drawn from a seed.

What is real: ``fairlead/control`` (SQLite included), ``LocalBackend``, ``NodeKeeper``, ``NodeLink``, the node's
``ControlLine`` and ``Outbox``, and the workers' ``Resumption``. What is simulated: clocks, threads, the network, node
managers, processes, and what workers do; ``local_seam.py`` is the one place where both meet.

Most seeds have more than jobs and faults (``more.py``): commands that are spread over several nodes, a pipeline, a
planner that is late, fails or never answers, the pruner, or a tenant that takes all of its jobs back. ``--plain`` plays
a seed without.

``python -m tests.storm SEED --trace`` plays a seed again; ``--revert N`` takes back the mend of a fault, which then has
to be seen:

| fault | what it is | invariant that sees it |
|---|---|---|
| 1 | ranks of one command get different ports | rendezvous-differs |
| 2 | a pass waits for each node's answer | not-heard, slow-to-lead, nobody-leads |
| 3 | each pass looks at each gang | looks |
| 4 | counts go on from what was read before an await | counts |
| 6 | putting a node to sleep fails unguarded | internal-error, leader-ends |
| 8 | inbox and cursors grow without bound | inbox, cursors, outbox |
| 9 | a line leaks when its first request fails | lines |
| 10 | a port is given out without holding it | rendezvous-shared |
| 11 | times of a node are compared with the leader's | times, ledger |
| 17 | a gang stands while nobody leads | stands-still |

Always: two-generations, device-twice, old-epoch, lost-job, ended-changes, undisturbed-touched, chatter, outbox, stuck,
stage-twice, stage-early, and waits-in-vain: when all has been well for 20 s, whoever waits for 20 s more is told a
reason that is true of the devices there are. In the end: no-end and untrue-end (``ends.py``), left-over, ledger
(``holdings.py``).
"""
