"""`subbyte kernels`: which kernels run here, and why."""

from rich.table import Table

from subbyte.kernels import isas, library


def kernel_table() -> Table:
    """A row for each instruction set that this installation has kernels for.

    Raises:
        KernelError: the native kernels cannot be used.
    """
    reason = library().reason
    table = Table(title="kernels", caption=reason and f"No native kernels: {reason}.")
    for heading in ("instruction set", "needs", "this CPU", "used"):
        table.add_column(heading, overflow="fold")
    for isa in isas():
        used = " ".join(f"{family}={name}" for family, name in isa.families.items()) if isa.used else ""
        table.add_row(isa.name, " ".join(isa.needs) or "nothing", "has it" if isa.available else "lacks it", used)
    table.add_row("torch", "PyTorch alone", "has it", "where no other kernel serves" if isas() else "yes")
    return table
