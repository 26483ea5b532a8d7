"""The store on a SQL database: PostgreSQL, MariaDB or MySQL, SQLite.

What makes a step atomic is the row of the aggregate in `coordinator_metadata`. A commit changes it first, under the head that
it was decided on; whoever writes leases holds it shared while it does. So all steps on one aggregate are one after another, as
they are in a Redis script, and no two transactions wait for each other crosswise: the order is metadata, looks, leases.

A deleted aggregate keeps its row, without JSON: it is what a new life and a late audit entry are serialised by.
"""
