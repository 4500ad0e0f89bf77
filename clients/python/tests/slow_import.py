"""An application whose import does not end, as if the machine were busy."""

import time

from tests.tasks_for_processes import note

note("importing")
time.sleep(3600)
