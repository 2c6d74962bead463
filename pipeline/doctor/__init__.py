"""`headstart doctor`: what would go wrong in hours is looked for in seconds.

    examination.py  all checks, in order
    findings.py     what a check found; how a check is kept from hanging
    project.py      settings, inputs, DVC, leases
    needs.py        memory and disk that a training takes, estimated
    cluster.py      Ray: token, plan, whether workers can talk
    probe.py        what a process looks at on each node
    nodes.py        asking all nodes, and what their answers mean
    printing.py     for a person, and for machines

Whatever is written to try something out is removed again.
"""

from pipeline.doctor.examination import examine
from pipeline.doctor.findings import Finding

__all__ = ["Finding", "examine"]
