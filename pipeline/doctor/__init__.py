"""`headstart doctor`: finds in seconds what would otherwise fail a long run after hours.

    examination.py  all checks, in order
    findings.py     what a check found; time limits of checks; findings for people and for machines
    project.py      settings, inputs, DVC, git, leases
    needs.py        an estimate of the memory and disk that a training takes
    cluster.py      Ray: token, plan, whether workers reach each other
    probe.py        what a process looks at on each node
    nodes.py        the probes of all nodes, and what their answers mean

Every file that a check writes is removed again.
"""

from pipeline.doctor.examination import examine
from pipeline.doctor.findings import Finding

__all__ = ["Finding", "examine"]
