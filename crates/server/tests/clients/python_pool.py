"""Uses the connection pool of PyPI's `tarantool`: python_pool.py SCENARIO HOST PORT, with USER and PASSWORD.

The pool asks every server whether it runs and can be written to. A client without a user connects too, and
is refused when it calls something.
"""

import os
import sys

import tarantool
from tarantool.error import DatabaseError

HOST, PORT = sys.argv[2], int(sys.argv[3])

pool = tarantool.ConnectionPool(
    [{"host": HOST, "port": PORT}], user=os.environ["USER"], password=os.environ["PASSWORD"]
)
answer = pool.call("queue.state", mode=tarantool.Mode.RW)
assert list(answer.data) == ["RUNNING"], answer
pool.close()

guest = tarantool.connect(HOST, PORT)
try:
    guest.call("queue.state")
except DatabaseError as error:
    assert error.args[0] == 42, error
else:
    raise AssertionError("a guest without grants may call")
print("pooled")
