"""Administrative requests: the sagas behind the mutating endpoints. Every method gives a Result, or a Refused.

Order of work: claim on record, then provision, then activate; what fails is taken back or resumed. Raises StoreUnavailable,
OutcomeUnknown, CorruptAggregate. Source: design pages `api.md` and `protocol.md`.
"""

from __future__ import annotations

from coord.runtime.admin_groups import GroupAdmin
from coord.runtime.admin_resharding import ReshardingAdmin


class Admin(GroupAdmin, ReshardingAdmin):
    """All mutations that an operator may ask for."""
