"""The steps that make and change the tables, by Alembic.

A step that is released is never edited. It may be repeated: MariaDB and MySQL change tables outside of transactions, so a crash
can leave a step half done. A step adds; what older releases could not work with raises `usable_from` in `coordinator_store`.
"""
